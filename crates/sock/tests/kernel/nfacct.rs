//! Named counters (nfacct).

use portolan_sock::{Errno, Socket, SocketError};
use portolan_wire::nfacct::{self, Counter, NfacctEvent};

use super::in_namespace;

fn get(socket: &mut Socket, name: &str) -> Result<Vec<NfacctEvent>, SocketError> {
    let mut found = Vec::new();
    socket.query(&mut nfacct::get(name), |frame| {
        found.push(NfacctEvent::decode(frame)?);
        Ok(())
    })?;
    Ok(found)
}

#[test]
fn a_counter_is_made_once_and_starts_at_zero() {
    in_namespace(|socket| {
        let name = "a".repeat(nfacct::NAME_MAX);
        assert_eq!(get(socket, &name).unwrap_err().errno(), Some(Errno::ENOENT));
        socket.query(&mut nfacct::create(&name), |_| Ok(())).unwrap();
        let again = socket.query(&mut nfacct::create(&name), |_| Ok(())).unwrap_err();
        assert_eq!(again.errno(), Some(Errno::EEXIST), "{again}");
        let counter = Counter { name: name.clone(), packets: 0, bytes: 0 };
        assert_eq!(get(socket, &name).unwrap(), [NfacctEvent::Counter(counter)]);
    });
}
