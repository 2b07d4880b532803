"""The web console: pages about a cluster, rendered here, from what the ``Admin`` finds.

It runs in a process of its own: a broker imports nothing of it. One ``ClusterPoller`` looks at the
cluster for all browsers; what belongs to one page, such as messages, is asked for by that page,
with the keys of its user.
"""
