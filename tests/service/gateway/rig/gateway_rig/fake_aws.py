"""S3, CloudWatch Logs and KMS as botocore's clients see them, with books of their own."""

import base64
import hashlib
import json
import secrets
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

KMS = "TrentService"


class FakeAws:
    """One server for all. ``objects`` by bucket and key; ``events`` by log group; ``keys`` of KMS
    with what each encrypted: its cipher text -> what it was, and the context."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, bytes]] = {}
        self.retained: dict[str, str] = {}
        self.events: dict[str, list[dict[str, Any]]] = {}
        self.keys: dict[str, dict[str, tuple[str, dict[str, str]]]] = {}
        self.broken = False
        self.page = 2
        aws = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None: ...

            def _body(self) -> bytes:
                if self.headers.get("Transfer-Encoding") == "chunked" or "aws-chunked" in (
                    self.headers.get("Content-Encoding", "")
                ):
                    return self._chunks()
                return self.rfile.read(int(self.headers.get("Content-Length", 0)))

            def _chunks(self) -> bytes:
                if self.headers.get("Transfer-Encoding") != "chunked":
                    raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                    size, _, rest = raw.partition(b"\r\n")
                    return rest[: int(size.split(b";")[0], 16)]
                whole = b""
                while size := int(self.rfile.readline().strip(), 16):
                    whole += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
                size, _, rest = whole.partition(b"\r\n")
                return rest[: int(size.split(b";")[0], 16)]

            def _answer(self, status: int, body: bytes, kind: str = "application/xml") -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("ETag", f'"{hashlib.md5(body).hexdigest()}"')
                self.end_headers()
                self.wfile.write(body)

            def do_PUT(self) -> None:
                body = self._body()
                self._answer(*aws.put(self.path, body, dict(self.headers.items())))

            def do_GET(self) -> None:
                self._answer(*aws.get(self.path))

            def do_POST(self) -> None:
                order = json.loads(self._body())
                service, _, operation = self.headers["X-Amz-Target"].partition(".")
                answer = aws.kms(operation, order) if service == KMS else aws.logs(order)
                self._answer(*answer, "application/x-amz-json-1.1")

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def environment(self) -> dict[str, str]:
        """What makes botocore come here."""
        return {
            "AWS_ENDPOINT_URL_S3": self.url,
            "AWS_ENDPOINT_URL_CLOUDWATCH_LOGS": self.url,
            "AWS_ENDPOINT_URL_KMS": self.url,
            "AWS_ACCESS_KEY_ID": "AKIAFAKE",
            "AWS_SECRET_ACCESS_KEY": "fake",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def stop(self) -> None:
        """Close the server."""
        self._server.shutdown()
        self._server.server_close()

    def put(self, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
        """PutObject."""
        if self.broken:
            return 500, _error("InternalError")
        bucket, _, key = unquote(urlsplit(path).path).lstrip("/").partition("/")
        kept = self.objects.get(bucket)
        if kept is None:
            return 404, _error("NoSuchBucket")
        given = {name.lower(): value for name, value in headers.items()}
        if given.get("if-none-match") == "*" and key in kept:
            return 412, _error("PreconditionFailed")
        kept[key] = body
        if "x-amz-object-lock-mode" in given:
            self.retained[key] = given["x-amz-object-lock-retain-until-date"]
        return 200, b""

    def get(self, path: str) -> tuple[int, bytes]:
        """GetObject and ListObjectsV2 in small pages."""
        if self.broken:
            return 500, _error("InternalError")
        parts = urlsplit(path)
        bucket, _, key = unquote(parts.path).lstrip("/").partition("/")
        kept = self.objects.get(bucket)
        if kept is None:
            return 404, _error("NoSuchBucket")
        if key:
            return (200, kept[key]) if key in kept else (404, _error("NoSuchKey"))
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        after = query.get("continuation-token", "")
        names = sorted(n for n in kept if n.startswith(query.get("prefix", "")) and n > after)
        page = names[: self.page]
        more = len(names) > len(page)
        items = "".join(
            f"<Contents><Key>{escape(name)}</Key><Size>{len(kept[name])}</Size></Contents>"
            for name in page
        )
        token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more else ""
        return 200, (
            f"<ListBucketResult><IsTruncated>{str(more).lower()}</IsTruncated>{items}{token}"
            "</ListBucketResult>"
        ).encode()

    def logs(self, order: dict[str, Any]) -> tuple[int, bytes]:
        """FilterLogEvents in small pages."""
        events = self.events.get(order["logGroupName"])
        if events is None:
            return 400, b'{"__type": "ResourceNotFoundException", "message": "no such group"}'
        found = [e for e in events if order["startTime"] <= e["timestamp"] <= order["endTime"]]
        begin = int(order.get("nextToken", "0"))
        answer: dict[str, Any] = {"events": found[begin : begin + self.page]}
        if begin + self.page < len(found):
            answer["nextToken"] = str(begin + self.page)
        return 200, json.dumps(answer).encode()

    def kms(self, operation: str, order: dict[str, Any]) -> tuple[int, bytes]:
        """Encrypt and Decrypt, by the ARN of a key."""
        name = order["KeyId"]
        book = self.keys.get(name)
        if book is None:
            return 400, b'{"__type": "NotFoundException", "message": "no such key"}'
        if operation == "Encrypt":
            blob = base64.b64encode(secrets.token_bytes(64)).decode()
            book[blob] = (order["Plaintext"], order["EncryptionContext"])
            return 200, json.dumps({"CiphertextBlob": blob, "KeyId": name}).encode()
        plain, context = book.get(order["CiphertextBlob"], ("", None))
        if context != order["EncryptionContext"]:
            return 400, b'{"__type": "InvalidCiphertextException"}'
        return 200, json.dumps({"Plaintext": plain, "KeyId": name}).encode()


def _error(code: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()
