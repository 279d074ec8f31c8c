"""TLS as the client sees it: who is trusted, and what is said where nobody is."""

import pytest
from parts_on_disk import a_graph, write
from warm_servers import WarmServer

import datapipes as dp
from datapipes.distributed import TLSConfig, connect

SHORT_S = 1.5  # a deadline that a test waits for
WAIT_S = 60.0  # for what comes at once, on a busy machine


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write(tmp_path_factory.mktemp("parts") / "root", a_graph(), 1)


@pytest.fixture(scope="module")
def address(root, ours):
    options = ["--tls-cert", ours.server.cert, "--tls-key", ours.server.key, "--tls-ca", ours.server.ca]
    with WarmServer(root, 0, *options, address="127.0.0.1:0") as server:  # which the certificate names
        yield server.address


def test_client_and_server_of_one_authority_find_each_other(address, ours):
    with connect({0: address}, tls=ours.client, deadline=WAIT_S) as client:
        assert client.health(0) == {"status": "serving", "part": 0}


def test_a_server_of_another_authority_is_refused_at_once(address, theirs):
    with pytest.raises(PermissionError, match=f"server 0 at {address}: TLS: .*certificate verify failed"):
        connect({0: address}, tls=theirs.client, deadline=WAIT_S)


@pytest.mark.parametrize("which", ["no certificate", "expired", "of another authority"])
def test_a_client_whom_the_server_refuses_is_told_where_to_look(address, ours, theirs, which):
    tls = {
        "no certificate": None,
        "expired": ours.expired,
        "of another authority": TLSConfig(theirs.client.cert, theirs.client.key, ours.ca),
    }[which]
    with pytest.raises(dp.ServerUnavailable, match=f"server 0 at {address}: .*certificate, that it does not accept"):
        connect({0: address}, tls=tls, deadline=SHORT_S)


def test_a_server_without_tls_is_refused_at_once(root, ours):
    with WarmServer(root, 0) as server, pytest.raises(PermissionError, match=r"TLS: .*or no TLS"):
        connect({0: server.address}, tls=ours.client, deadline=WAIT_S)


def test_a_key_of_another_certificate_is_refused_before_anything_is_sent(ours):
    mixed = TLSConfig(ours.client.cert, ours.server.key, ours.ca)
    with pytest.raises(ValueError, match=r"server.key, is damaged or does not fit .*client.pem"):
        connect({0: "127.0.0.1:9"}, tls=mixed, deadline=WAIT_S)
