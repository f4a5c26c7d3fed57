//! Reads and writes the timeouts of idle connections.

use portolan_sock::SocketError;
use portolan_wire::ipvs::{self, Timeouts};

use super::Kernel;
use crate::Error;

/// One timeout to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Write {
    /// The field of the configuration.
    field: &'static str,
    seconds: u32,
    /// The request: 0 for the other timeouts, which leaves them as they are.
    request: Timeouts,
}

impl Kernel {
    /// Writes the timeouts that differ from the wanted values. A timeout that the kernel refuses is logged, and stays as it
    /// is: Services work with any.
    pub(crate) fn set_timeouts(&mut self, wanted: Timeouts) -> Result<(), Error> {
        let failed = Error::socket("IPVS timeouts");
        if wanted == Timeouts::default() {
            return Ok(());
        }
        let (number, mut present) = (self.number, Timeouts::default());
        let asked = self.generic.query(&mut ipvs::timeouts(number), |frame| {
            if let ipvs::IpvsEvent::Timeouts(timeouts) = ipvs::IpvsEvent::decode(number, frame)? {
                present = timeouts;
            }
            Ok(())
        });
        asked.map_err(&failed)?;
        for Write { field, seconds, request } in differing(wanted, present) {
            match self.generic.query(&mut ipvs::set_timeouts(number, request), |_| Ok(())) {
                Err(error @ SocketError::Refused(_)) => {
                    if self.refused_timeouts.insert(field) {
                        tracing::error!(field, seconds, %error, "the kernel refuses a timeout of IPVS, which stays as it is");
                    }
                }
                outcome => outcome.map_err(&failed)?,
            }
        }
        Ok(())
    }
}

/// Returns the timeouts to write. Each is written alone, because the kernel refuses all of a request for one value
/// (`ip_vs_set_timeout` in `net/netfilter/ipvs/ip_vs_ctl.c`).
fn differing(wanted: Timeouts, present: Timeouts) -> impl Iterator<Item = Write> {
    let none = Timeouts::default();
    let all = [
        ("ipvs.tcpTimeout", wanted.tcp, present.tcp, Timeouts { tcp: wanted.tcp, ..none }),
        ("ipvs.tcpFinTimeout", wanted.tcp_fin, present.tcp_fin, Timeouts { tcp_fin: wanted.tcp_fin, ..none }),
        ("ipvs.udpTimeout", wanted.udp, present.udp, Timeouts { udp: wanted.udp, ..none }),
    ];
    let differs = all.into_iter().filter(|(_, wanted, present, _)| *wanted != 0 && wanted != present);
    differs.map(|(field, seconds, _, request)| Write { field, seconds, request })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_timeouts_that_differ_are_written_each_alone() {
        let present = Timeouts { tcp: 900, tcp_fin: 120, udp: 300 };
        let fields = |wanted| differing(wanted, present).map(|write| write.field).collect::<Vec<_>>();
        assert_eq!(fields(Timeouts::default()), [""; 0]);
        assert_eq!(fields(Timeouts { tcp: 900, tcp_fin: 0, udp: 301 }), ["ipvs.udpTimeout"]);
        let all: Vec<Write> = differing(Timeouts { tcp: u32::MAX, tcp_fin: 1, udp: 2 }, present).collect();
        let none = Timeouts::default();
        assert_eq!(
            all.iter().map(|write| write.request).collect::<Vec<_>>(),
            [
                Timeouts { tcp: u32::MAX, ..none },
                Timeouts { tcp_fin: 1, ..none },
                Timeouts { udp: 2, ..none }
            ]
        );
    }
}
