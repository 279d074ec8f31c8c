"""TLSConfig: its files, and where TLS is needed."""

import pickle

import pytest

from datapipes.distributed.addresses import Address
from datapipes.distributed.tls import TLSConfig, check_tls, refuse_plain

PEM = b"-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n"


@pytest.fixture
def config(tmp_path):
    for name in ("cert", "key", "ca"):
        (tmp_path / name).write_bytes(PEM + name.encode())
    return TLSConfig(tmp_path / "cert", str(tmp_path / "key"), tmp_path / "ca")


def test_the_files_are_read_each_time_and_the_paths_travel(config):
    assert config.read("here").key == PEM + b"key"
    config.cert.write_bytes(PEM + b"renewed")
    assert pickle.loads(pickle.dumps(config)).read("here") == (PEM + b"renewed", PEM + b"key", PEM + b"ca")


def test_what_a_tls_config_refuses(config, refuses):
    config.ca.write_bytes(b"\x30\x82")
    refuses(ValueError, config.read, "here")
    config.cert.unlink()
    with pytest.raises(FileNotFoundError, match=r"here: cert of the TLSConfig, .*cert', cannot be read: No such file"):
        config.read("here")
    refuses(TypeError, TLSConfig, "cert", None, "ca")
    refuses(TypeError, check_tls, "here", "cert", False)
    refuses(TypeError, check_tls, "here", None, 1)
    refuses(ValueError, check_tls, "here", config, True)


def test_off_loopback_there_is_tls_or_somebody_has_said_insecure(config, refuses):
    far = Address("10.0.0.5", 7000)
    refuses(ValueError, refuse_plain, "here", far, None, False)
    refuses(ValueError, refuse_plain, "here", Address("0.0.0.0", 7000), None, False)
    refuse_plain("here", far, config, False)
    refuse_plain("here", far, None, True)
    refuse_plain("here", Address("127.0.0.1", 7000), None, False)
