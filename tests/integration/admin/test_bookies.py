"""Bookies over REST: which there are, where they stand."""

from __future__ import annotations

from magnetar.admin.client.client import AdminClient
from magnetar.admin.documents.cluster import BookieInfo
from magnetar.testing.server import ServerProcess
from tests.integration.admin.conftest import Api


def test_racks(api: Api) -> None:
    base = "bookies/racks-info"
    assert api.get(base) == {}
    api.post(f"{base}/10.0.0.1:3181?group=default", {"rack": "/eu/r1", "hostname": "host1"})
    api.post(f"{base}/10.0.0.2:3181?group=blue", {"rack": "r2"})
    assert api.get(base) == {
        "default": {"10.0.0.1:3181": {"rack": "/eu/r1", "hostname": "host1"}},
        "blue": {"10.0.0.2:3181": {"rack": "r2", "hostname": "10.0.0.2:3181"}},
    }
    assert api.get(f"{base}/10.0.0.1:3181") == {"rack": "/eu/r1", "hostname": "host1"}
    # moved to another group it leaves the first one, which vanishes when it is empty
    api.post(f"{base}/10.0.0.2:3181?group=default", {"rack": "r3"})
    assert list(api.get(base)) == ["default"]
    assert api.reason("GET", f"{base}/nobody:1", status=404) == "Bookie address not found: nobody:1"
    api.reason("DELETE", f"{base}/nobody:1", status=404)
    api.reason("POST", f"{base}/10.0.0.3:3181", {"rack": "r"}, status=412)
    api.reason("POST", f"{base}/10.0.0.3:3181?group=g", {"rack": "/a/b/c"}, status=412)
    api.reason("POST", f"{base}/readonly?group=g", {"rack": "r"}, status=412)
    api.reason("POST", f"{base}/10.0.0.3:3181?group=g", {}, status=400)
    for name in ("10.0.0.1:3181", "10.0.0.2:3181"):
        api.delete(f"{base}/{name}")
    assert api.get(base) == {}


def test_the_client_and_the_list(server: ServerProcess) -> None:
    with AdminClient(server.http_url) as admin:
        assert admin.bookies.list() == ["standalone:3181"]  # by the cookie that it keeps beside its metadata
        admin.bookies.set_rack("b:1", "default", "r1", "host")
        assert admin.bookies.rack("b:1") == BookieInfo(rack="r1", hostname="host")
        assert admin.bookies.racks() == {"default": {"b:1": BookieInfo(rack="r1", hostname="host")}}
        admin.bookies.delete_rack("b:1")
        assert admin.bookies.racks() == {}
