//! Netlink sockets: send a batch, read acknowledgements, dump, subscribe.
