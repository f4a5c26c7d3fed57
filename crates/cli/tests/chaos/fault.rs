//! What is done to the agent.

use std::fmt;

/// The modes that keep open connections when their agent ends. Connections of the userspace mode end with it.
pub(crate) const MODES: [&str; 2] = ["nftables", "iptables"];

/// A fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Nothing but edits.
    None,
    /// `kill -9`, edits, and a start in a mode.
    Kill(&'static str),
    /// SIGTERM, edits, and a start in a mode.
    Restart(&'static str),
    /// The configuration names another mode.
    Switch(&'static str),
    /// SIGSTOP, edits, SIGCONT.
    Pause,
    /// The API server ends, objects change, and it starts again.
    ServerAway,
    /// No packet between the agent and the API server arrives for a while.
    ServerHangs,
    /// One packet in three between the agent and the API server is lost for a while.
    ServerSlow,
    /// All connections to the API server are reset.
    Reset,
    /// All connections to the API server are reset, and new ones are refused for some seconds.
    CutOff,
    /// The API server breaks off each answer in its middle for a while.
    BrokenOff,
    /// The API server lists no Service and no EndpointSlice for a while, although there are many.
    Emptied,
    /// The API server comes back with earlier objects, at a revision that is older than that of the agent.
    RolledBack,
    /// The agent can open no file and no socket, while the API server ends and starts again.
    NoDescriptors,
    /// The agent gets no more memory.
    NoMemory,
    /// The kernel refuses one in three of the messages that the agent, and the programs that it runs, send and receive: to
    /// and from the kernel, and to and from the API server.
    Refused,
    /// Another program removes all rules of Services in a family.
    Flush,
    /// Another program removes some of the rules.
    Damage,
    /// Another program removes one element, or one rule.
    OneRule,
    /// Another program changes more rules of its own than the kernel's notifications to the agent can hold.
    Overrun,
}

impl Fault {
    /// Returns each fault once, those with a mode once for each mode.
    pub(crate) fn all() -> Vec<Self> {
        let mut all = vec![
            Self::None,
            Self::Pause,
            Self::ServerAway,
            Self::ServerHangs,
            Self::ServerSlow,
            Self::Reset,
            Self::CutOff,
            Self::BrokenOff,
            Self::Emptied,
            Self::RolledBack,
            Self::NoDescriptors,
            Self::NoMemory,
            Self::Refused,
            Self::Flush,
            Self::Damage,
            Self::OneRule,
            Self::Overrun,
        ];
        all.extend(MODES.iter().flat_map(|mode| [Self::Kill(mode), Self::Restart(mode), Self::Switch(mode)]));
        all
    }

    /// Returns true if packets meet removed rules until the agent has written them again.
    pub(crate) const fn removes_rules(self) -> bool {
        matches!(self, Self::Flush | Self::Damage | Self::OneRule)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "edits only",
            Self::Kill(mode) => return write!(f, "kill -9 and start in mode {mode}"),
            Self::Restart(mode) => return write!(f, "restart in mode {mode}"),
            Self::Switch(mode) => return write!(f, "switch to mode {mode}"),
            Self::Pause => "stop and continue",
            Self::ServerAway => "API server away",
            Self::ServerHangs => "API server hangs",
            Self::ServerSlow => "API server behind a lossy network",
            Self::Reset => "connections to the API server reset",
            Self::CutOff => "API server cut off",
            Self::BrokenOff => "answers of the API server broken off",
            Self::Emptied => "API server emptied",
            Self::RolledBack => "API server rolled back",
            Self::NoDescriptors => "no file descriptors",
            Self::NoMemory => "no memory",
            Self::Refused => "messages refused",
            Self::Flush => "all rules removed",
            Self::Damage => "some rules removed",
            Self::OneRule => "one rule removed",
            Self::Overrun => "notifications of others overrun",
        })
    }
}
