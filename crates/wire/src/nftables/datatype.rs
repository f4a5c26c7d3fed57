//! nft's numbers for the types of keys and data. The kernel only stores them; nft needs them for listings.

numbers! {
    /// Type of a key or of data (nft's `datatype.h`). See [`concatenated`] for concatenations.
    DataType(u32) {
        /// A verdict (`NFT_DATA_VERDICT`).
        VERDICT = 0xffff_ff00,
        /// A number without further meaning. nft cannot print such a key without a `typeof` in the user data.
        INTEGER = 4,
        /// An address of four bytes.
        IPV4_ADDR = 7,
        /// An address of sixteen bytes.
        IPV6_ADDR = 8,
        /// An address of six bytes.
        ETHER_ADDR = 9,
        /// A protocol number of the IP header, one byte.
        INET_PROTO = 12,
        /// A port, two bytes.
        INET_SERVICE = 13,
        /// A packet mark, four bytes in the machine's byte order.
        MARK = 19,
        /// An interface index, four bytes in the machine's byte order.
        IFINDEX = 20,
        /// A routing realm, four bytes in the machine's byte order.
        REALM = 22,
        /// A traffic class, four bytes in the machine's byte order.
        CLASSID = 23,
        /// A user id, four bytes in the machine's byte order.
        UID = 24,
        /// A group id, four bytes in the machine's byte order.
        GID = 25,
        /// A device group, four bytes in the machine's byte order.
        DEVGROUP = 35,
        /// An interface name, sixteen bytes.
        IFNAME = 41,
    }
}

/// Bits of one type in the number of a concatenation.
const TYPE_BITS: u32 = 6;

/// Returns the type of a concatenation: six bits for each field, the first field highest. At most five fields fit.
/// `fields` must not contain [`DataType::VERDICT`].
pub const fn concatenated(fields: &[DataType]) -> DataType {
    let mut number = 0_u32;
    let mut rest = fields;
    while let [first, tail @ ..] = rest {
        number = (number << TYPE_BITS) | (first.0 & ((1 << TYPE_BITS) - 1));
        rest = tail;
    }
    DataType(number)
}
