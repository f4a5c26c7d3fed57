//! An estimate of the memory that the rules of this mode take: in the kernel, and in the programs that read and write
//! them.
//!
//! Kernel memory is charged, like that of the programs, to the cgroup of the process that starts them. The figures
//! are measured (`docs/install.md`): the kernel's with Linux 6.18, the programs' with iptables 1.8.9, on 64 bits.

use portolan_model::Forwarding;

use super::Variant;
use super::planner::reachable;

/// The numbers that memory depends on, for the Services of one family.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Size {
    /// Addresses and node ports of Services. Each has a rule.
    pub frontends: u64,
    /// Endpoints, counted for each Service port. Each has a chain and rules that lead to it.
    pub endpoints: u64,
}

/// Memory, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Memory {
    /// Kernel memory for the rules.
    pub kernel: u64,
    /// Memory of the largest program, with what the kernel needs while the program runs.
    pub program: u64,
}

impl Size {
    /// Returns the size of one Service port.
    pub fn of(forwarding: &Forwarding) -> Self {
        Self { frontends: forwarding.frontends.len() as u64, endpoints: reachable(forwarding) as u64 }
    }

    /// Returns the sum of both.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            frontends: self.frontends.saturating_add(other.frontends),
            endpoints: self.endpoints.saturating_add(other.endpoints),
        }
    }

    /// Returns the difference, with 0 for what would be negative.
    #[must_use]
    pub const fn minus(self, other: Self) -> Self {
        Self {
            frontends: self.frontends.saturating_sub(other.frontends),
            endpoints: self.endpoints.saturating_sub(other.endpoints),
        }
    }

    /// Returns the estimated memory.
    pub const fn memory(self, variant: Variant) -> Memory {
        let costs = match variant {
            // A save holds all rules of its text in memory at once; restores hold one piece at a time.
            Variant::Nft => Costs {
                kernel: PerPart { frontend: 2_100, endpoint: 2_050 },
                program: PerPart { frontend: 3_000, endpoint: 2_300 },
            },
            // Each restore reads the whole table and writes a new one. The kernel has both for a while.
            Variant::Legacy => Costs {
                kernel: PerPart { frontend: 1_550, endpoint: 920 },
                program: PerPart { frontend: 5_500, endpoint: 3_700 },
            },
        };
        Memory { kernel: costs.kernel.of(self), program: PROGRAM.saturating_add(costs.program.of(self)) }
    }
}

/// Memory of a program with its libraries that has almost nothing to do, in bytes.
const PROGRAM: u64 = 8 << 20;

struct Costs {
    kernel: PerPart,
    program: PerPart,
}

/// Bytes for each frontend and each endpoint.
struct PerPart {
    frontend: u64,
    endpoint: u64,
}

impl PerPart {
    const fn of(&self, size: Size) -> u64 {
        let frontends = self.frontend.saturating_mul(size.frontends);
        frontends.saturating_add(self.endpoint.saturating_mul(size.endpoints))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Measured, in MiB: the rules in the kernel, and the peak with the program added.
    #[test]
    fn estimates_are_within_a_sixth_of_what_was_measured() {
        let table = [
            (Variant::Nft, 6_000, 1, 23, 56),
            (Variant::Nft, 10_000, 10, 207, 453),
            (Variant::Nft, 16_000, 10, 330, 723),
            (Variant::Nft, 20_000, 10, 411, 902),
            (Variant::Legacy, 6_000, 1, 14, 69),
            (Variant::Legacy, 10_000, 10, 101, 507),
            (Variant::Legacy, 16_000, 10, 163, 809),
            (Variant::Legacy, 20_000, 10, 205, 1_012),
        ];
        for (variant, services, endpoints, kernel, most) in table {
            let size = Size { frontends: services, endpoints: services * endpoints };
            let memory = size.memory(variant);
            for (said, measured) in [(memory.kernel, kernel), (memory.kernel + memory.program, most)] {
                let said = said >> 20;
                assert!(said >= measured * 29 / 30, "{variant:?} {services}: {said} of {measured}");
                assert!(said <= measured * 7 / 6 + 10, "{variant:?} {services}: {said} of {measured}");
            }
        }
    }

    #[test]
    fn sizes_add_up() {
        let (one, two) = (Size { frontends: 1, endpoints: 10 }, Size { frontends: 3, endpoints: 5 });
        assert_eq!(one.plus(two).minus(two), one);
        assert_eq!(one.minus(two), Size { frontends: 0, endpoints: 5 });
    }
}
