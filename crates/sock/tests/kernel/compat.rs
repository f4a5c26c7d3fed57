//! Matches of iptables.

use portolan_sock::Errno;
use portolan_wire::compat::find_match;

use super::in_namespace;

#[test]
fn a_match_is_there_or_not() {
    in_namespace(|socket| {
        socket.query(&mut find_match("comment", 0), |_| Ok(())).unwrap();
        let unknown = socket.query(&mut find_match("no-such-match", 0), |_| Ok(())).unwrap_err();
        assert_eq!(unknown.errno(), Some(Errno::ENOENT), "{unknown}");
    });
}
