"""Who may do what: the accounts of ``plain_acl.yml``, and the guard that checks requests."""
