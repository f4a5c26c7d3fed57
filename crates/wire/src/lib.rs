//! Encodes and decodes netlink messages, without sockets.
//!
//! Owns the layout of netlink headers and attributes ([`netlink`]), the headers of netfilter ([`nfnetlink`]) and of
//! generic netlink ([`generic`]), and one module for each family on top: [`nftables`], [`conntrack`], [`ipset`],
//! [`ipvs`], [`nfacct`], [`compat`], and addresses, links and routing rules ([`route`]). Structs come in and bytes go out, or
//! the reverse. Every decoder accepts arbitrary bytes. It returns a value or a [`DecodeError`] that names the
//! object, the attribute and the offset.
//!
//! The crate must not know of sockets, threads, Services, or the meaning of rules.
//!
//! Numbers and layouts come from the kernel's headers `linux/netlink.h`, `linux/netfilter/nfnetlink.h`,
//! `linux/netfilter/nf_tables.h`, `linux/netfilter/nfnetlink_conntrack.h`, `linux/netfilter/ipset/ip_set.h`,
//! `linux/netfilter/nfnetlink_acct.h`, `linux/netfilter/nf_tables_compat.h`,
//! `linux/genetlink.h`, `linux/ip_vs.h`, `linux/rtnetlink.h` and
//! `linux/if_addr.h`; those of user data from libnftnl's `udata.h`.

#[macro_use]
mod numbers;

pub mod compat;
pub mod conntrack;
mod error;
pub mod generic;
pub mod ipset;
pub mod ipvs;
pub mod netlink;
pub mod nfacct;
pub mod nfnetlink;
pub mod nftables;
pub mod route;

pub use error::{DecodeError, EncodeError};
pub use netlink::{Acknowledgement, Attribute, Attributes, Batch, Frame, Frames, Message, Request};
