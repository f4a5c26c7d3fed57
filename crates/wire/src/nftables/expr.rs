//! Expressions: the instructions of a rule.
//!
//! They have the kernel's names. Registers are not kept from one rule to the next: each rule loads the values that
//! it compares.

mod compare;
mod load;
mod local;
mod statement;

pub use compare::{Bitwise, BitwiseOperation, Cmp, CmpOperation, Dynset, DynsetOperation, Lookup, Range};
pub use load::{
    Ct, CtKey, Fib, FibFlags, FibResult, Immediate, Meta, MetaKey, Numgen, NumgenType, Payload, PayloadBase,
};
pub use local::{Socket, SocketKey, Tproxy};
pub use statement::{Counter, Log, Masq, Nat, NatFlags, NatType, Redir, Reject, RejectType};

use super::{Data, Register, Verdict};
use crate::DecodeError;
use crate::netlink::{Attribute, AttributeMap, Message};

const OBJECT: &str = "nf_tables expression";
const NFTA_EXPR_NAME: u16 = 1;
const NFTA_EXPR_DATA: u16 = 2;

/// An expression.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Expr {
    /// Loads bytes of the packet.
    Payload(Payload),
    /// Loads or sets a property of the packet that is not in its bytes.
    Meta(Meta),
    /// Loads or sets a property of the packet's connection.
    Ct(Ct),
    /// Looks up a route.
    Fib(Fib),
    /// Generates a number, random or incremental.
    Numgen(Numgen),
    /// Loads a constant, or sets the verdict.
    Immediate(Immediate),
    /// Ends the rule unless a comparison is true.
    Cmp(Cmp),
    /// Ends the rule unless a value is inside (or outside) a range.
    Range(Range),
    /// Computes with bits.
    Bitwise(Bitwise),
    /// Looks up a key in a set or map.
    Lookup(Lookup),
    /// Changes a set from the packet path.
    Dynset(Dynset),
    /// Translates to a given address.
    Nat(Nat),
    /// Translates the source to the address of the outgoing interface.
    Masq(Masq),
    /// Translates the destination to this host.
    Redir(Redir),
    /// Passes the packet to a socket of this host.
    Tproxy(Tproxy),
    /// Loads a property of the packet's socket.
    Socket(Socket),
    /// Rejects the packet with an answer.
    Reject(Reject),
    /// Counts packets and bytes.
    Counter(Counter),
    /// Logs the packet.
    Log(Log),
    /// An expression that is not modelled, kept as it is.
    Other {
        /// Name of the expression.
        name: String,
        /// The encoded attributes.
        bytes: Vec<u8>,
    },
}

/// The attributes of an expression. No expression has more than 16 types.
type Map<'a> = AttributeMap<'a, 16>;

/// The operations of an expression's struct.
trait Body: Sized {
    /// The kernel's name of the expression.
    const NAME: &'static str;
    fn encode(&self, message: &mut Message<'_>);
    fn decode(map: &Map<'_>) -> Result<Self, DecodeError>;
}

impl Expr {
    /// Creates a verdict.
    pub fn verdict(verdict: Verdict) -> Self {
        Self::Immediate(Immediate { destination: Register::VERDICT, data: Data::Verdict(verdict) })
    }

    /// Fills in the kernel's defaults and removes counts, so that an expression read back equals its written form.
    #[must_use]
    pub fn normalized(self) -> Self {
        match self {
            Self::Lookup(lookup) => Self::Lookup(lookup.normalized()),
            Self::Dynset(dynset) => Self::Dynset(dynset.normalized()),
            Self::Nat(nat) => Self::Nat(nat.normalized()),
            Self::Masq(masq) => Self::Masq(masq.normalized()),
            Self::Redir(redir) => Self::Redir(redir.normalized()),
            Self::Log(log) => Self::Log(log.normalized()),
            Self::Counter(_) => Self::Counter(Counter::default()),
            other => other,
        }
    }

    pub(super) fn encode(&self, message: &mut Message<'_>) {
        match self {
            Self::Payload(body) => write(message, body),
            Self::Meta(body) => write(message, body),
            Self::Ct(body) => write(message, body),
            Self::Fib(body) => write(message, body),
            Self::Numgen(body) => write(message, body),
            Self::Immediate(body) => write(message, body),
            Self::Cmp(body) => write(message, body),
            Self::Range(body) => write(message, body),
            Self::Bitwise(body) => write(message, body),
            Self::Lookup(body) => write(message, body),
            Self::Dynset(body) => write(message, body),
            Self::Nat(body) => write(message, body),
            Self::Masq(body) => write(message, body),
            Self::Redir(body) => write(message, body),
            Self::Tproxy(body) => write(message, body),
            Self::Socket(body) => write(message, body),
            Self::Reject(body) => write(message, body),
            Self::Counter(body) => write(message, body),
            Self::Log(body) => write(message, body),
            Self::Other { name, bytes } => {
                message.attr_str(NFTA_EXPR_NAME, name);
                message.attr_nested_bytes(NFTA_EXPR_DATA, bytes);
            }
        }
    }

    pub(super) fn decode(element: &Attribute<'_>) -> Result<Self, DecodeError> {
        let map = element.nested(OBJECT).by_kind::<3>()?;
        let name = map.required(NFTA_EXPR_NAME)?.text()?;
        let data = map.get(NFTA_EXPR_DATA);
        Ok(match name {
            Payload::NAME if !Payload::is_write(data)? => Self::Payload(read(data)?),
            Meta::NAME => Self::Meta(read(data)?),
            Ct::NAME => Self::Ct(read(data)?),
            Fib::NAME => Self::Fib(read(data)?),
            Numgen::NAME => Self::Numgen(read(data)?),
            Immediate::NAME => Self::Immediate(read(data)?),
            Cmp::NAME => Self::Cmp(read(data)?),
            Range::NAME => Self::Range(read(data)?),
            Bitwise::NAME if Bitwise::is_known(data)? => Self::Bitwise(read(data)?),
            Lookup::NAME => Self::Lookup(read(data)?),
            Dynset::NAME => Self::Dynset(read(data)?),
            Nat::NAME => Self::Nat(read(data)?),
            Masq::NAME => Self::Masq(read(data)?),
            Redir::NAME => Self::Redir(read(data)?),
            Tproxy::NAME => Self::Tproxy(read(data)?),
            Socket::NAME => Self::Socket(read(data)?),
            Reject::NAME => Self::Reject(read(data)?),
            Counter::NAME => Self::Counter(read(data)?),
            Log::NAME => Self::Log(read(data)?),
            _ => Self::Other {
                name: name.to_owned(),
                bytes: data.map(|data| data.payload.to_vec()).unwrap_or_default(),
            },
        })
    }
}

fn write<B: Body>(message: &mut Message<'_>, body: &B) {
    message.attr_str(NFTA_EXPR_NAME, B::NAME);
    message.nest(NFTA_EXPR_DATA, |message| body.encode(message));
}

/// Reads an expression's attributes. An expression without attributes may leave out the nest.
fn read<B: Body>(data: Option<Attribute<'_>>) -> Result<B, DecodeError> {
    B::decode(&attributes(data, B::NAME)?)
}

fn attributes<'a>(data: Option<Attribute<'a>>, name: &'static str) -> Result<Map<'a>, DecodeError> {
    match data {
        Some(data) => data.nested(name).by_kind(),
        None => crate::Attributes::new(name, &[], 0).by_kind(),
    }
}

fn register(map: &Map<'_>, kind: u16) -> Result<Register, DecodeError> {
    Register::decode(&map.required(kind)?)
}

fn register_if(map: &Map<'_>, kind: u16) -> Result<Option<Register>, DecodeError> {
    map.get(kind).map(|attribute| Register::decode(&attribute)).transpose()
}

fn number(map: &Map<'_>, kind: u16) -> Result<u32, DecodeError> {
    map.required(kind)?.u32_be()
}
