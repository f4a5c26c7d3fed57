//! Netlink bytes: encode and decode, no sockets.
