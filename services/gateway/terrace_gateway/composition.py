"""How the guard's parts are put together. Reads files; touches no network."""

from pathlib import Path

from terrace_common.governance import load_governance
from terrace_common.governance.alerts import Webhook
from terrace_common.telemetry import setup_telemetry
from terrace_gateway import VERSION
from terrace_gateway.authentication.admin_tokens import AdminTokens
from terrace_gateway.authentication.chain import AuthenticatorChain
from terrace_gateway.authentication.directory import PolicyDirectory
from terrace_gateway.authentication.oidc import TokenAuthenticator
from terrace_gateway.authentication.tokens import TokenVerifier
from terrace_gateway.authentication.virtual_key import VirtualKeyAuthenticator
from terrace_gateway.capture.cipher import Sealer, open_cipher
from terrace_gateway.capture.key_wrapping import KeyWrappingError
from terrace_gateway.capture.writer import CaptureWriter
from terrace_gateway.clock import Clock
from terrace_gateway.database import Database
from terrace_gateway.edge.client import BodyRoom
from terrace_gateway.guardrails.chain import Guardrails
from terrace_gateway.guardrails.http_client import GuardrailHttp
from terrace_gateway.ledger.chains.anchors import AnchorStore
from terrace_gateway.ledger.chains.signing import read_signer
from terrace_gateway.ledger.keeper import LedgerKeeper
from terrace_gateway.ledger.metrics import LedgerCollector
from terrace_gateway.ledger.object_store import open_objects
from terrace_gateway.ledger.opening_index import OpeningIndex
from terrace_gateway.ledger.reaper import LedgerReaper
from terrace_gateway.ledger.shipper import Shipper
from terrace_gateway.matching import Matcher
from terrace_gateway.membership import Membership
from terrace_gateway.metrics import Metrics
from terrace_gateway.money.alert_webhooks import AlertWebhooks, CredentialMissingError
from terrace_gateway.money.budget_alerts import BudgetWatch
from terrace_gateway.money.budget_store import BudgetStore
from terrace_gateway.money.grants import PostgresSlices
from terrace_gateway.money.heartbeat import Heartbeat
from terrace_gateway.money.slice_book import SliceBook
from terrace_gateway.money.slice_reaper import SliceReaper
from terrace_gateway.policy.deployed import Deployed
from terrace_gateway.policy.feed import NoPolicyError, PolicyFeed
from terrace_gateway.policy.key_use import KeyUse
from terrace_gateway.policy.listener import PolicyListener
from terrace_gateway.policy.quota_watch import UpstreamQuotaWatch
from terrace_gateway.policy.saved import SavedPolicy
from terrace_gateway.policy.seed import DeploymentFile
from terrace_gateway.policy.store import PolicyStore
from terrace_gateway.policy.texts import Texts
from terrace_gateway.policy.upstream_quotas import UpstreamQuotaStore
from terrace_gateway.policy.versions import GovernanceVersions
from terrace_gateway.prices import Prices
from terrace_gateway.runtime import Runtime
from terrace_gateway.settings import Settings, SettingsError, read_secrets
from terrace_gateway.spool.journal import SpoolJournal
from terrace_gateway.standing_metrics import StandingCollector
from terrace_gateway.turns import TurnsCollector
from terrace_gateway.upstream.bulkhead import BulkheadLimits, Bulkheads
from terrace_gateway.upstream.credentials import Credentials
from terrace_gateway.upstream.dispatch import Dispatch
from terrace_gateway.upstream.port import NotSentError
from terrace_gateway.upstream.relay import Relay, RelaySettings
from terrace_gateway.upstream.translator import Translator


def build_runtime(settings: Settings) -> Runtime:
    """Read files and make the parts; no network. Raises ``SettingsError``, ``GovernanceError``."""
    secrets = read_secrets(settings)
    text = _read(settings.governance_file, "governance file")
    governance = load_governance(text, str(settings.governance_file))
    clock = Clock()
    metrics = Metrics(replica=settings.replica, version=VERSION)
    database = Database(
        secrets.database_url,
        size=settings.database_pool_size,
        wait_seconds=settings.database_wait_seconds,
    )
    deployed = Deployed(governance)
    texts = Texts()
    versions = GovernanceVersions(database, deployed, texts)
    deployment = DeploymentFile(versions, text)
    policy = PolicyFeed(
        PolicyStore(database),
        clock,
        deployed,
        lease_seconds=settings.policy_lease_seconds,
        seed=deployment.seed,
        texts=texts,
    )
    key_use = KeyUse(database, clock)
    tokens = TokenVerifier(None, clock)  # those of the file may have been removed since
    heartbeat = Heartbeat(
        database,
        clock,
        replica=settings.replica,
        heartbeat_seconds=settings.heartbeat_seconds,
        lease_seconds=settings.lease_seconds,
        stream_limit_seconds=governance.defaults.hard_stream_limit_seconds,
    )
    journal = SpoolJournal(
        settings.spool_directory,
        replica=settings.replica,
        clock=clock,
        observer=metrics.spool,
        limit_bytes=settings.spool_bytes,
        segment_bytes=settings.spool_segment_bytes,
    )
    slices = SliceBook(PostgresSlices(database), clock, events=metrics.slices)
    membership = Membership(heartbeat, journal, slices, policy)
    shipper = Shipper(
        journal,
        database,
        replica=settings.replica,
        dead_letters=settings.spool_directory,
        on_incarnation_shipped=membership.close_incarnation,
        running=slices.running,
    )
    quota_watch = UpstreamQuotaWatch(UpstreamQuotaStore(database), journal)
    metrics.registry.register(quota_watch)
    keeper = _keeper(settings, database, shipper, clock)
    reaper = LedgerReaper(
        database,
        replica=settings.replica,
        every_seconds=settings.reaper_seconds,
        margin_seconds=settings.stream_margin_seconds,
    )
    opening_index = OpeningIndex(database)
    metrics.registry.register(LedgerCollector(journal, shipper, keeper, opening_index, reaper))
    prices = Prices(governance.price_version)
    matcher = Matcher(governance, prices=prices, clock=clock)
    translator = Translator(settings.translator_socket, settings.translator_key_file)
    bulkheads = Bulkheads(
        BulkheadLimits(
            settings.provider_places, settings.provider_queue, settings.provider_wait_seconds
        )
    )
    credentials = Credentials(settings.relay_credentials_directory)
    guardrail_http = GuardrailHttp(credential=credentials.find)
    relay = Relay(credentials, RelaySettings())
    budgets = BudgetStore(database)
    metrics.registry.register(StandingCollector(policy, slices, bulkheads, matcher))
    runtime = Runtime(
        settings=settings,
        secrets=secrets,
        clock=clock,
        database=database,
        policy=policy,
        saved_policy=_saved_policy(settings, clock, secrets.key_pepper),
        listener=PolicyListener(secrets.database_url, policy.wake),
        versions=versions,
        deployment=deployment,
        key_use=key_use,
        authenticators=AuthenticatorChain(
            (
                VirtualKeyAuthenticator(policy, clock, pepper=secrets.key_pepper, use=key_use),
                TokenAuthenticator(tokens, PolicyDirectory(policy, clock)),
            )
        ),
        admin_authenticators=(AdminTokens(tokens, policy, clock),),
        tokens=tokens,
        membership=membership,
        slices=slices,
        slice_reaper=SliceReaper(database),
        quota_watch=quota_watch,
        budget_watch=BudgetWatch(
            budgets,
            journal,
            metrics.budgets,
            lambda: _names(_webhooks(policy)),
            replica=settings.replica,
        ),
        alert_webhooks=AlertWebhooks(
            budgets,
            metrics.budgets,
            lambda: _webhooks(policy) or (),
            lambda variable: _credential(credentials, variable),
        ),
        journal=journal,
        shipper=shipper,
        keeper=keeper,
        opening_index=opening_index,
        reaper=reaper,
        prices=prices,
        matcher=matcher,
        guardrail_http=guardrail_http,
        guardrails=Guardrails(()),  # those of a spec come into force with it
        capture=CaptureWriter(database, _cipher(settings), told=metrics.captured),
        translator=translator,
        bulkheads=bulkheads,
        upstream=Dispatch(translator, relay, bulkheads),
        metrics=metrics,
        telemetry=setup_telemetry("gateway", instance=settings.replica, version=VERSION),
        body_room=BodyRoom(settings.body_memory_bytes),
    )
    metrics.registry.register(TurnsCollector(runtime.turns))
    return runtime


def _webhooks(policy: PolicyFeed) -> tuple[Webhook, ...] | None:
    """Of the spec in force; ``None``: there is none yet."""
    try:
        alerts = policy.current().snapshot.governance.alerts
    except NoPolicyError:
        return None
    return () if alerts is None else alerts.webhooks


def _names(webhooks: tuple[Webhook, ...] | None) -> list[str] | None:
    return None if webhooks is None else [webhook.name for webhook in webhooks]


def _credential(credentials: Credentials, variable: str) -> str:
    try:
        return credentials.of(variable)
    except NotSentError:
        raise CredentialMissingError from None


def _saved_policy(settings: Settings, clock: Clock, pepper: bytes) -> SavedPolicy | None:
    folder = settings.policy_snapshot_folder
    return None if folder is None else SavedPolicy(folder, clock, pepper=pepper)


def _cipher(settings: Settings) -> Sealer | None:
    path, arn = settings.capture_key_file, settings.capture_kms_key_arn
    if path is not None and arn is not None:
        raise SettingsError(
            "captured prompts have one key-encryption key: set TERRACE_CAPTURE_KEY_FILE or"
            " TERRACE_CAPTURE_KMS_KEY_ARN, not both"
        )
    try:
        return open_cipher(path, kms_key_arn=arn)
    except KeyWrappingError as error:
        raise SettingsError(f"TERRACE_CAPTURE_KEY_FILE: {error}") from None


def _keeper(settings: Settings, database: Database, shipper: Shipper, clock: Clock) -> LedgerKeeper:
    signing = settings.ledger_signing_key_file
    location = settings.anchor_location
    store = None
    if location is not None:
        store = AnchorStore(open_objects(location), retention_days=settings.anchor_retention_days)
    return LedgerKeeper(
        database,
        shipper,
        clock=clock,
        store=store,
        signer=None if signing is None else read_signer(signing),
        every_seconds=settings.anchor_seconds,
    )


def _read(path: Path, what: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: cannot read the {what}: {type(error).__name__}") from None
