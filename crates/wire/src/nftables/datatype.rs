//! nft's numbers for the types of keys and data. The kernel stores them; only listings need them.

numbers! {
    /// Type of a key or of data (nft's `datatype.h`); see [`concatenated`] for several in one.
    DataType(u32) {
        /// A verdict (`NFT_DATA_VERDICT`).
        VERDICT = 0xffff_ff00,
        /// A number without further meaning; nft cannot print a key of it without a `typeof` in the user data.
        INTEGER = 4,
        /// Four bytes of address.
        IPV4_ADDR = 7,
        /// Sixteen bytes of address.
        IPV6_ADDR = 8,
        /// Six bytes of address.
        ETHER_ADDR = 9,
        /// One byte, the number in the IP header.
        INET_PROTO = 12,
        /// Two bytes, a port.
        INET_SERVICE = 13,
        /// Four bytes in the machine's order, a packet mark.
        MARK = 19,
        /// Four bytes in the machine's order, an interface index.
        IFINDEX = 20,
        /// Four bytes in the machine's order, a routing realm.
        REALM = 22,
        /// Four bytes in the machine's order, a traffic class.
        CLASSID = 23,
        /// Four bytes in the machine's order, a user.
        UID = 24,
        /// Four bytes in the machine's order, a group.
        GID = 25,
        /// Four bytes in the machine's order, a device group.
        DEVGROUP = 35,
        /// Sixteen bytes, an interface name.
        IFNAME = 41,
    }
}

/// Bits that one type takes in the number of a concatenation.
const TYPE_BITS: u32 = 6;

/// The type of a concatenation: six bits for each field, the first in the highest place. At most five fields
/// fit; `fields` must not hold [`DataType::VERDICT`].
pub const fn concatenated(fields: &[DataType]) -> DataType {
    let mut number = 0_u32;
    let mut rest = fields;
    while let [first, tail @ ..] = rest {
        number = (number << TYPE_BITS) | (first.0 & ((1 << TYPE_BITS) - 1));
        rest = tail;
    }
    DataType(number)
}
