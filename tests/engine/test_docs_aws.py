"""docs/aws.md, word for word: what needs no account is run; the rest has its options looked up."""

import re
import shlex
from ipaddress import ip_address, ip_network
from pathlib import Path

import click
import pytest
import yaml
from fresh_checkout import ROOT, check_out, machine, shell
from harness import Cloud, Engine, Platform
from harness.accounts import with_zone

from terrace_cli.main import terrace
from terrace_local.images.catalogue import IMAGES

PAGE = ROOT / "docs/aws.md"
BLOCK = re.compile(r"^```sh(?P<account> account)?\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
# Programs of others that an account is needed for; their options cannot be looked up here.
OTHERS = {"aws", "skopeo", "kubectl", "curl"}
SHELL = {"while", "done", "export", "name=${reference#*/};", "."}


def blocks(*, account: bool) -> list[str]:
    found = [m["text"] for m in BLOCK.finditer(PAGE.read_text()) if bool(m["account"]) == account]
    assert found
    return found


def commands(text: str) -> list[list[str]]:
    """The words of each command, `a | b` and `a; b` apart; what is inside of $( ) is left out."""
    found: list[list[str]] = []
    for line in text.splitlines():
        outside = re.sub(r"\$\([^()]*(?:\([^()]*\)[^()]*)*\)", "VALUE", line)
        words = shlex.split(outside, comments=True)
        command: list[str] = []
        for before, word in zip(["", *words], [*words, ";"], strict=True):
            if word in ("|", "&", ";"):
                found += [command] if command else []
                command = []
            elif not {word, before} & {"<", ">"}:
                command.append(word)
    return found


def test_every_block_without_an_account_runs_as_it_is_written(
    engine: Engine, cloud: Cloud, tmp_path: Path
) -> None:
    with_zone(cloud)  # section 1: "a public Route 53 zone"
    before = cloud.items()
    clone = check_out(tmp_path / "terrace")
    home = tmp_path / "home"
    home.mkdir()
    told = [f"echo '>>> block {n}'\n{text}" for n, text in enumerate(blocks(account=False), 1)]
    done = shell("\n".join(told), clone, {**machine(engine, home), "AWS_REGION": "us-east-1"})
    assert done.returncode == 0, done.stdout[-6000:]
    assert "can only be previewed once the substrate stands" in done.stdout
    assert "aws:eks:NodeGroup" in done.stdout
    assert cloud.items() == before, "a preview changed something"
    settings = (clone / "Pulumi.aws-stage1.yaml").read_text()
    assert "# EDIT" in settings, "`pulumi config set` keeps the file's comments"
    edited = yaml.safe_load(settings)["config"]["terrace:aws"]
    assert edited["cluster"]["apiAccessCidrs"] == ["198.51.100.0/24"]
    assert edited["database"]["deletionProtection"] is False


@pytest.mark.parametrize("text", blocks(account=True), ids=lambda text: text.split("\n")[0][:40])
def test_commands_that_need_an_account_have_the_options_that_are_written(
    engine: Engine, tmp_path: Path, text: str
) -> None:
    for words in commands(text):
        program = Path(words[0]).name
        if program == "terrace":
            check_terrace(words[1:])
        elif program == "pulumi":
            check_pulumi(engine, tmp_path, words[1:])
        else:
            assert program in OTHERS | SHELL | {"python"} or "=" in program, words


def test_the_simulation_is_called_from_where_the_settings_allow(
    engine: Engine, tmp_path: Path
) -> None:
    """Its README and this page, followed on one machine: the range that this page sets holds the
    address that the README sets, or the README sets none."""
    page = (ROOT / "tests/engine/simulated_cloud/README.md").read_text()
    told = re.findall(r"^export (?!PYTHONPATH).*$", page, re.MULTILINE)
    assert told
    environment = machine(engine, tmp_path)
    del environment["SIMULATED_CLOUD_ADDRESS"]
    echo = 'echo "address ${SIMULATED_CLOUD_ADDRESS:-none}"'
    done = shell("\n".join([*told, echo]), ROOT, environment)
    address = done.stdout.split()[-1]
    allowed = re.findall(r"apiAccessCidrs\[0\]' (\S+)", PAGE.read_text())
    assert len(allowed) == 1
    assert address == "none" or ip_address(address) in ip_network(allowed[0])


def test_the_simulated_providers_are_installed_as_their_readme_says(
    engine: Engine, tmp_path: Path
) -> None:
    """On a home without anything in it."""
    page = (ROOT / "tests/engine/simulated_cloud/README.md").read_text()
    loop = page[page.index("mkdir -p ~/.local/bin") : page.index("done\n") + len("done\n")]
    done = shell(f"{loop}command -v pulumi-resource-eks", tmp_path, machine(engine, tmp_path))
    assert done.returncode == 0, done.stdout
    assert done.stdout.split()[-1] == str(tmp_path / ".local/bin/pulumi-resource-eks")


def check_terrace(words: list[str]) -> None:
    """Click takes the words: command, options, values."""
    context = click.Context(terrace)
    command = terrace
    while isinstance(command, click.Group):
        found = command.get_command(context, words[0])
        assert found is not None, f"terrace has no command {words[0]}"
        command, words = found, words[1:]
    command.make_context(command.name, list(words))


def check_pulumi(engine: Engine, folder: Path, words: list[str]) -> None:
    """The help of the subcommand has each option."""
    subcommand = words[: 2 if words[0] in ("stack", "config", "policy") else 1]
    said = engine.pulumi(*subcommand, "--help", folder=folder)
    for option in (word for word in words if word.startswith("--")):
        assert re.search(rf"{option}\b", said), f"pulumi {' '.join(subcommand)} has no {option}"


def test_images_and_names_are_where_the_page_looks_for_them(stage_one: Platform) -> None:
    """Sections 7 and 8 read the substrate's output, and push every image that the platform runs."""
    substrate = stage_one.substrate.outputs()["substrate"]
    built = re.search(r"terrace_local\.images ([\w -]+) >", PAGE.read_text())
    assert built is not None
    assert set(built[1].split()) == set(substrate["registry"])
    assert substrate["cluster"]["name"]
    assert set(built[1].split()) <= set(IMAGES)
    told = " ".join(stage_one.platform.outputs()["next_steps"])
    for command in ("update-kubeconfig", "get secret gateway-secrets", "port-forward"):
        assert command in told
        assert command in PAGE.read_text()


def test_the_jobs_that_make_secrets_can_be_run_again(stage_one: Platform) -> None:
    """Section 9: only Jobs are replaced, and what they made before stays."""
    [pattern] = re.findall(r"--replace '([^']+)'", PAGE.read_text())
    run = stage_one.platform.up("--replace", pattern).must_work()
    assert run.replaced == ["kubernetes:batch/v1:Job"]


def test_every_service_that_the_stack_uses_is_named_with_its_bill() -> None:
    """Who gives rights or estimates cost reads the table of section 1."""
    rows = re.findall(r"^\| ([a-z0-9, ]+) \| [^|]+ \|[^|]*\|$", PAGE.read_text(), re.MULTILINE)
    named = {name.strip() for row in rows for name in row.split(",")}
    used = {
        match
        for file in (ROOT / "components/terrace_components/aws").glob("*.py")
        for match in re.findall(r"\baws\.([a-z0-9]+)\.[A-Z]\w+\(", file.read_text())
    }
    assert used
    assert used <= named, f"not in the table: {sorted(used - named)}"
