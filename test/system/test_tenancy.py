"""A second project's key tries every id of the first on every route: 404 everywhere, and nothing changed.

The routes come from the server's own description, so that a new route is covered by itself.
"""

import json

import pytest
from platform_under_test import ApiError


def first_ids(platform, make):
    sandbox = make()
    handle = sandbox.commands.run("sleep 600", background=True, timeout=0)
    operations = platform.api("GET", "/v1/operations?limit=10")["operations"]
    keys = platform.api("GET", "/v1/keys")["keys"]
    me = platform.api("GET", "/v1/me")
    snapshot = platform.api("POST", f"/v1/sandboxes/{sandbox.sandbox_id}/snapshots?wait=60", {})["snapshot"]
    assert snapshot["state"] == "ready", snapshot
    return sandbox, {
        "sandbox": sandbox.sandbox_id, "sandboxID": sandbox.sandbox_id, "id": sandbox.sandbox_id,
        "command": str(handle.pid), "pid": str(handle.pid), "operation": operations[0]["id"] if operations else "o" + "0" * 20,
        "key": keys[0]["id"], "project": keys[0].get("project", "p" + "0" * 20),
        "level": "project", "subject": me["project"], "credential": "theirs", "snapshot": snapshot["id"],
        "organisation": me["organisation"],
    }


def test_a_strangers_key_sees_nothing(platform, make):
    sandbox, ids = first_ids(platform, make)
    platform.api("PUT", "/v1/credentials/theirs", {"value": "x", "binding": {"hosts": ["a.example"], "header": "x-key"}})
    elsewhere = platform.api("POST", "/v1/organisations", {"name": "strangers"})
    stranger_project = platform.api("POST", "/v1/projects", {"name": "stranger", "organisation": elsewhere["id"]})
    stranger_key = platform.api("POST", "/v1/keys", {"name": "s", "role": "admin", "project": stranger_project["id"]})
    stranger = stranger_key["key"]
    description = platform.api("GET", "/openapi.json")
    before = platform.api("GET", f"/v1/sandboxes/{sandbox.sandbox_id}")
    tried = 0
    for path, methods in description["paths"].items():
        if "{" not in path:
            continue
        for method in methods:
            if method.upper() not in ("GET", "POST", "PUT", "PATCH", "DELETE"):
                continue
            # A name that is put is one's own: the stranger's, of a project of its own.
            if methods[method].get("operationId") == "putCredential":
                continue
            url = path
            for name in [part[1:-1] for part in path.split("/") if part.startswith("{")]:
                kind = {"sandbox": "sandbox", "sandbox_id": "sandbox"}.get(name, name)
                assert kind in ids or kind in ("template", "templateID", "alias", "node", "organisation", "path"), f"{path}: no id for {name}"
                url = url.replace("{" + name + "}", ids.get(kind, "nothing-of-that-name"))
            with pytest.raises(ApiError) as raised:
                body = None if method in ("get", "delete") else {}
                platform.api(method.upper(), url, body, key=stranger)
            assert raised.value.status == 404, f"{method.upper()} {url}: {raised.value}"
            assert raised.value.body.get("message"), f"{method.upper()} {url} has no message"
            tried += 1
    assert tried >= 15
    after = platform.api("GET", f"/v1/sandboxes/{sandbox.sandbox_id}")
    drop = lambda row: {k: v for k, v in row.items() if k not in ("last_used_at",)}
    assert json.dumps(drop(before), sort_keys=True) == json.dumps(drop(after), sort_keys=True)
    assert sandbox.commands.run("echo mine").stdout == "mine\n"
    assert platform.api("GET", f"/v1/snapshots/{ids['snapshot']}")["state"] == "ready"
    for collection in ("sandboxes", "snapshots", "operations", "credentials"):
        assert platform.api("GET", f"/v1/{collection}", key=stranger)[collection] == [], collection
    assert [one["id"] for one in platform.api("GET", "/v1/keys", key=stranger)["keys"]] == [stranger_key["id"]]
    # What it may name to start from is its own as well.
    with pytest.raises(ApiError) as raised:
        platform.api("POST", "/v1/sandboxes", {"snapshot": ids["snapshot"]}, key=stranger)
    assert raised.value.status == 404, raised.value
    platform.api("DELETE", f"/v1/snapshots/{ids['snapshot']}")


def test_a_revoked_key_is_dead_with_the_next_request(platform):
    made = platform.api("POST", "/v1/keys", {"name": "short-lived", "role": "member"})
    assert platform.api("GET", "/v1/sandboxes", key=made["key"])["sandboxes"] is not None
    platform.api("DELETE", f"/v1/keys/{made['id']}")
    with pytest.raises(ApiError) as raised:
        platform.api("GET", "/v1/sandboxes", key=made["key"])
    assert raised.value.status == 401
