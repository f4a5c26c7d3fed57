//! A small Kubernetes-style API server for Services without Kubernetes.
