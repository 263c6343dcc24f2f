"""Every command of pulsar-admin and every route of Pulsar's admin API is here, or its absence has a reason."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def parity() -> ModuleType:
    spec = importlib.util.spec_from_file_location("parity", ROOT / "tools/parity.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_is_missing_has_a_reason(parity: ModuleType) -> None:
    surface = json.loads(parity.SURFACE.read_text(encoding="utf-8"))
    assert len(surface["routes"]) > 500
    assert sum(len(commands) for commands in surface["commands"].values()) > 500
    assert parity.problems(surface) == []


def test_the_table_in_the_document_is_the_present_one(parity: ModuleType) -> None:
    surface = json.loads(parity.SURFACE.read_text(encoding="utf-8"))
    assert parity.table(surface) in parity.DOCUMENT.read_text(encoding="utf-8"), "run python tools/parity.py"


def test_a_route_and_a_command_that_are_taken_away_are_noticed(parity: ModuleType) -> None:
    surface = {
        "routes": {
            "GET /admin/v2/tenants": ["asAnybody"],
            "GET /admin/v2/unicorns/{}": [],
            "POST /admin/v2/persistent/{}/{}/{}/messageTTL": ["isGlobal", "messageTTL"],
        },
        "commands": {"tenants": {"list": [["-x", "--unicorn"]], "gallop": []}},
    }
    assert [tuple(item) for item in parity.missing(surface)] == [
        ("parameter", "tenants", "GET /admin/v2/tenants?asAnybody"),
        ("route", "unicorns", "GET /admin/v2/unicorns/{}"),
        ("flag", "tenants", "tenants list -x"),
        ("flag", "tenants", "tenants list --unicorn"),
        ("command", "tenants", "tenants gallop"),
    ]


def test_java_sources_are_read(parity: ModuleType, tmp_path: Path) -> None:
    resources = tmp_path / "pulsar-broker/src/main/java/org/apache/pulsar/broker/admin/v2"
    resources.mkdir(parents=True)
    (resources / "Unicorns.java").write_text(
        """
@Path("/unicorns")
@Api(value = "/unicorns", tags = "unicorns")
public class Unicorns extends UnicornsBase {
    @GET
    @Path("/{tenant}/{name: .+}")
    @ApiResponses(value = { @ApiResponse(code = 200, message = "Don't panic") })
    public void get(@PathParam("tenant") String tenant,
            @QueryParam("horn") @DefaultValue("1") int horn, @QueryParam("authoritative") boolean authoritative) {
        validate();
    }

    @POST
    public void create() {
    }
}
"""
    )
    tool = tmp_path / "pulsar-client-tools/src/main/java/org/apache/pulsar/admin/cli"
    tool.mkdir(parents=True)
    (tool / "PulsarAdminTool.java").write_text('commandMap.put("unicorns", CmdUnicorns.class);')
    (tool / "CmdUnicorns.java").write_text(
        """
public class CmdUnicorns extends CmdBase {
    private class ListCmd extends CliCommand {
        @Option(names = { "-c", "--colour" }, description = "such as {white}")
        private String colour;
    }
    CmdUnicorns() {
        addCommand("list", new CmdUnicorns.ListCmd());
    }
}
"""
    )
    assert parity.routes_of([tmp_path]) == {"GET /admin/v2/unicorns/{}/{}": ["horn"], "POST /admin/v2/unicorns": []}
    assert parity.commands_of([tmp_path]) == {"unicorns": {"list": [["-c", "--colour"]]}}
