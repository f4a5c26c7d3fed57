//! Namespaces, pods, probes: the world that packet tests run in.
