"""Access control: 4.9's accounts, 5.x's users and rules."""

from __future__ import annotations

from remoting.protocol.headers.base import Header, header


@header
class CreateAccessConfigRequestHeader(Header):
    """UPDATE_AND_CREATE_ACL_CONFIG (4.9): one account."""

    access_key: str
    secret_key: str | None = None
    white_remote_address: str | None = None
    admin: bool | None = None
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: str | None = None
    group_perms: str | None = None


@header
class DeleteAccessConfigRequestHeader(Header):
    """DELETE_ACL_CONFIG (4.9)."""

    access_key: str


@header
class UpdateGlobalWhiteAddrsConfigRequestHeader(Header):
    """UPDATE_GLOBAL_WHITE_ADDRS_CONFIG (4.9)."""

    global_white_addrs: str
    acl_file_full_path: str


@header
class GetBrokerAclConfigResponseHeader(Header):
    """GET_BROKER_CLUSTER_ACL_INFO (4.9): versions of the rule files."""

    version: str
    all_acl_file_version: str | None = None
    broker_name: str
    broker_addr: str
    cluster_name: str


@header
class CreateUserRequestHeader(Header):
    """AUTH_CREATE_USER (5.x)."""

    username: str | None = None


@header
class UpdateUserRequestHeader(Header):
    """AUTH_UPDATE_USER (5.x)."""

    username: str | None = None


@header
class DeleteUserRequestHeader(Header):
    """AUTH_DELETE_USER (5.x)."""

    username: str | None = None


@header
class GetUserRequestHeader(Header):
    """AUTH_GET_USER (5.x)."""

    username: str | None = None


@header
class ListUsersRequestHeader(Header):
    """AUTH_LIST_USER (5.x)."""

    filter: str | None = None


@header
class CreateAclRequestHeader(Header):
    """AUTH_CREATE_ACL (5.x)."""

    subject: str | None = None


@header
class UpdateAclRequestHeader(Header):
    """AUTH_UPDATE_ACL (5.x)."""

    subject: str | None = None


@header
class DeleteAclRequestHeader(Header):
    """AUTH_DELETE_ACL (5.x)."""

    subject: str | None = None
    policy_type: str | None = None
    resource: str | None = None


@header
class GetAclRequestHeader(Header):
    """AUTH_GET_ACL (5.x)."""

    subject: str | None = None


@header
class ListAclsRequestHeader(Header):
    """AUTH_LIST_ACL (5.x)."""

    subject_filter: str | None = None
    resource_filter: str | None = None
