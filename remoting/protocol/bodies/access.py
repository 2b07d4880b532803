"""The accounts of a broker (4.9)."""

from __future__ import annotations

from msgspec import field

from remoting.protocol.bodies.body import Body


class PlainAccessConfig(Body):
    """One account, with its keys."""

    access_key: str = ""
    secret_key: str = ""
    white_remote_address: str | None = None
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: list[str] = field(default_factory=list)
    group_perms: list[str] = field(default_factory=list)

    def __repr__(self) -> str:
        """Return its name, and no secret."""
        return f"PlainAccessConfig({self.access_key!r})"


class AclConfig(Body):
    """Answer to GET_BROKER_CLUSTER_ACL_CONFIG (cf. GetBrokerClusterAclConfigResponseBody)."""

    global_white_addrs: list[str] = field(default_factory=list)
    plain_access_configs: list[PlainAccessConfig] = field(default_factory=list)
