//! nftables transactions: elements, failures, generations, notifications.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use portolan_sock::{CommitError, Errno, Protocol, Socket, SocketError};
use portolan_wire::nfnetlink::GROUP_NFTABLES;
use portolan_wire::nftables::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{TABLE, commit, event, in_namespace, is_linux, list, new_table};

const FAMILY: Family = Family::IPV4;

fn map(name: &str) -> Set {
    let data = Some(SetData::Value { kind: DataType::MARK, length: 4 });
    let userdata = UserData::set(ByteOrder::Network, Some(ByteOrder::Host), "");
    Set { data, userdata, id: 1, ..Set::new(FAMILY, TABLE, name, DataType::IPV4_ADDR, 4) }
}

fn elements(socket: &mut Socket, set: &str) -> Vec<Element> {
    let mut found = Vec::new();
    socket
        .dump(&mut request::elements(FAMILY, TABLE, set), |frame| {
            if let NftablesEvent::NewElements(list) = NftablesEvent::decode(frame)? {
                assert_eq!((list.family, list.table, list.set), (FAMILY, TABLE, set));
                for element in list.elements() {
                    found.push(element?.to_owned());
                }
            }
            Ok(())
        })
        .unwrap();
    found.sort_by(|one, other| one.key.cmp(&other.key));
    found
}

/// Lists a set again until it has `count` elements. While the kernel's hash table grows or shrinks, a list lacks some
/// elements and has others twice, and no flag reports this.
fn settled(socket: &mut Socket, set: &str, count: usize) -> Vec<Element> {
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        let mut found = elements(socket, set);
        found.dedup();
        if found.len() == count {
            return found;
        }
        assert!(Instant::now() < deadline, "{} different elements of {count} listed", found.len());
    }
}

/// Checks the element count of each set. Kernels before 6.16 do not report it.
fn assert_counted(socket: &mut Socket, count: u32) {
    let sets = request::sets(FAMILY, TABLE);
    let counted = |event: NftablesEvent<'_>| match event {
        NftablesEvent::NewSet(set) => set.element_count,
        _ => None,
    };
    for counted in list(socket, sets, event(counted)) {
        assert_eq!(counted, count);
    }
}

#[test]
fn a_hundred_thousand_elements_in_one_transaction() {
    in_namespace(|socket| {
        const COUNT: u32 = 100_000;
        commit(socket, |transaction| {
            new_table(transaction, FAMILY);
            transaction.new_set(&map("map"), IfExists::Fail);
            let mut writer = transaction.elements(ElementsOperation::Create, FAMILY, TABLE, "map");
            for index in 0..COUNT {
                let value = index.wrapping_mul(7).to_ne_bytes();
                writer.push(&ElementRef::mapping(&index.to_be_bytes(), DataRef::Value(&value)));
            }
        });
        let expected: BTreeMap<_, _> = (0..COUNT)
            .map(|index| (index.to_be_bytes().to_vec(), index.wrapping_mul(7).to_ne_bytes()))
            .collect();
        let found: BTreeMap<_, _> = settled(socket, "map", expected.len())
            .into_iter()
            .map(|element| match element.data {
                Some(Data::Value(value)) => (element.key, value.try_into().unwrap()),
                other => panic!("{other:?}"),
            })
            .collect();
        assert!(found == expected, "{} elements found", found.len());
        assert_counted(socket, COUNT);

        commit(socket, |transaction| {
            let mut writer = transaction.elements(ElementsOperation::Delete, FAMILY, TABLE, "map");
            for index in 1..COUNT {
                writer.push(&ElementRef::key(&index.to_be_bytes()));
            }
        });
        settled(socket, "map", 1);
        assert_counted(socket, 1);
        commit(socket, |transaction| transaction.flush_set(FAMILY, TABLE, "map"));
        assert_eq!(elements(socket, "map"), []);
    });
}

#[test]
fn elements_of_every_form_read_back_as_written() {
    in_namespace(|socket| {
        let comment = UserData::comment("a comment");
        let verdicts = Set { data: Some(SetData::Verdict), ..map("verdicts") };
        let counted = Set { expressions: vec![Expr::Counter(expr::Counter::default())], ..map("counted") };
        let timed = Set { flags: SetFlags::TIMEOUT, ..map("timed") };
        let (ranges, fields) = (SetFlags::INTERVAL.with(SetFlags::CONCAT), vec![4, 2]);
        let key_type = concatenated(&[DataType::IPV4_ADDR, DataType::INET_SERVICE]);
        let ranges = Set { id: 9, flags: ranges, fields, ..Set::new(FAMILY, TABLE, "ranges", key_type, 8) };
        let verdict = |verdict| Some(DataRef::Verdict(verdict));
        let element = |key, data| ElementRef { data, ..ElementRef::key(key) };
        let cases = [
            ("verdicts", element(&[1, 1, 1, 1], verdict(Verdict::Goto("target")))),
            ("verdicts", element(&[1, 1, 1, 2], verdict(Verdict::Jump("target")))),
            ("verdicts", element(&[1, 1, 1, 3], verdict(Verdict::Drop))),
            ("verdicts", element(&[1, 1, 1, 4], verdict(Verdict::Accept))),
            ("verdicts", element(&[1, 1, 1, 5], verdict(Verdict::Return))),
            (
                "counted",
                ElementRef {
                    userdata: comment.as_bytes(),
                    counter: Some(expr::Counter::default()),
                    ..ElementRef::mapping(&[1, 1, 1, 1], DataRef::Value(&[9, 0, 0, 1]))
                },
            ),
            (
                "timed",
                ElementRef {
                    timeout: Some(3_600_000),
                    ..ElementRef::mapping(&[1, 1, 1, 1], DataRef::Value(&[9, 0, 0, 1]))
                },
            ),
            (
                "ranges",
                ElementRef {
                    key_end: Some(&[10, 255, 255, 255, 0, 90, 0, 0]),
                    ..ElementRef::key(&[10, 0, 0, 0, 0, 80, 0, 0])
                },
            ),
        ];
        commit(socket, |transaction| {
            new_table(transaction, FAMILY);
            transaction.new_chain(&Chain::regular(FAMILY, TABLE, "target"), IfExists::Fail);
            for set in [&verdicts, &counted, &timed, &ranges] {
                transaction.new_set(set, IfExists::Fail);
            }
            for (set, element) in &cases {
                transaction.elements(ElementsOperation::Add, FAMILY, TABLE, set).push(element);
            }
        });
        for set in ["verdicts", "counted", "timed", "ranges"] {
            let written: Vec<_> =
                cases.iter().filter(|case| case.0 == set).map(|case| case.1.to_owned()).collect();
            let mut found = elements(socket, set);
            // The remaining time of a timeout decreases.
            for element in &mut found {
                element.expiration = None;
            }
            assert_eq!(found, written);
        }
    });
}

#[test]
fn a_refused_element_is_named_by_number_and_offset() {
    in_namespace(|socket| {
        commit(socket, |transaction| {
            new_table(transaction, FAMILY);
            transaction.new_set(&map("map"), IfExists::Fail);
        });
        let mut transaction = Transaction::begin(1000, None);
        let mut numbers = Vec::new();
        let mut writer = transaction.elements(ElementsOperation::Delete, FAMILY, TABLE, "map");
        numbers.push(writer.push(&ElementRef::key(&[9, 9, 9, 9])));
        drop(writer);
        let mut writer = transaction.elements(ElementsOperation::Add, FAMILY, TABLE, "map");
        for last in 0..9 {
            // The data of the seventh element is too long.
            let value = if last == 6 { &[0; 8][..] } else { &[0; 4][..] };
            numbers.push(writer.push(&ElementRef::mapping(&[1, 1, 1, last], DataRef::Value(value))));
        }
        drop(writer);
        numbers.push(transaction.delete_chain(FAMILY, TABLE, "missing"));
        let batch = transaction.finish().unwrap();

        let CommitError::Refused(refusals) = socket.commit(&batch).unwrap_err() else { panic!() };
        let found: Vec<_> = refusals.iter().map(|refusal| (refusal.sequence, refusal.errno)).collect();
        assert_eq!(found, [(1001, Errno::ENOENT), (1002, Errno(22)), (1003, Errno::ENOENT)]);
        assert_eq!(
            (numbers.first(), numbers.get(1), numbers.last()),
            (Some(&1001), Some(&1002), Some(&1003))
        );
        let culprits: Vec<_> = refusals
            .iter()
            .filter_map(|refusal| element_at(&batch.frame(refusal.sequence)?, refusal.offset?))
            .map(|element| element.key.to_vec())
            .collect();
        // Linux before 5.15 does not name elements.
        if is_linux(5, 15) {
            assert_eq!(culprits, [[9, 9, 9, 9], [1, 1, 1, 6]]);
        }
        assert_eq!(elements(socket, "map"), [], "the whole transaction is rolled back");
    });
}

#[test]
fn a_moved_generation_refuses_the_transaction() {
    in_namespace(|socket| {
        let generation = |socket: &mut Socket| {
            let mut found = None;
            socket.query(&mut request::generation(), |frame| {
                if let NftablesEvent::Generation(generation) = NftablesEvent::decode(frame)? {
                    found = Some(generation.id);
                }
                Ok(())
            })?;
            Ok::<_, SocketError>(found.unwrap())
        };
        let before = generation(socket).unwrap();
        commit(socket, |transaction| new_table(transaction, FAMILY));
        let after = generation(socket).unwrap();
        assert_ne!(before, after);

        let delete = |generation| {
            let mut transaction = Transaction::begin(1, Some(generation));
            transaction.delete_table(FAMILY, TABLE);
            transaction.finish().unwrap()
        };
        let error = socket.commit(&delete(before)).unwrap_err();
        assert!(matches!(error, CommitError::GenerationMoved), "{error}");
        socket.commit(&delete(after)).unwrap();
    });
}

#[test]
fn notifications_name_the_socket_that_caused_them() {
    in_namespace(|socket| {
        let mut listener = Socket::open(Protocol::Netfilter).unwrap();
        listener.subscribe(&[GROUP_NFTABLES]).unwrap();
        assert_eq!(listener.receive(|_| Ok(())).unwrap(), 0);
        commit(socket, |transaction| {
            new_table(transaction, FAMILY);
            transaction.new_chain(&Chain::regular(FAMILY, TABLE, "chain"), IfExists::Fail);
            transaction.new_set(&map("map"), IfExists::Fail);
            let element = ElementRef::mapping(&[1, 1, 1, 1], DataRef::Value(&[0; 4]));
            transaction.elements(ElementsOperation::Add, FAMILY, TABLE, "map").push(&element);
            transaction.append_rule(&Rule::new(FAMILY, TABLE, "chain", vec![Expr::verdict(Verdict::Drop)]));
        });
        commit(socket, |transaction| transaction.delete_table(FAMILY, TABLE));
        let mut seen = Vec::new();
        await_readable(&listener);
        listener
            .receive(|frame| {
                // Only the generation's message names the process that committed.
                let ours = frame.header.port == socket.port();
                seen.push((summary(&NftablesEvent::decode(frame)?), ours));
                Ok(())
            })
            .unwrap();
        let names: Vec<_> = seen.iter().map(|(name, _)| name.as_str()).collect();
        let expected = "table chain set element rule generation -rule -set -chain -table generation";
        assert_eq!(sorted(names), sorted(expected.split(' ').collect()));
        assert!(seen.iter().all(|&(_, ours)| ours), "{seen:?}");
    });
}

#[test]
fn too_many_notifications_are_reported() {
    in_namespace(|socket| {
        let mut listener = Socket::open(Protocol::Netfilter).unwrap();
        listener.set_receive_capacity(4096).unwrap();
        listener.subscribe(&[GROUP_NFTABLES]).unwrap();
        commit(socket, |transaction| {
            new_table(transaction, FAMILY);
            for index in 0..500 {
                transaction
                    .new_chain(&Chain::regular(FAMILY, TABLE, format!("chain-{index}")), IfExists::Fail);
            }
        });
        let error = listener.receive(|_| Ok(())).unwrap_err();
        assert!(matches!(error, SocketError::Overrun), "{error}");
        commit(socket, |transaction| transaction.delete_table(FAMILY, TABLE));
        let error = listener.receive(|_| Ok(())).unwrap_err();
        assert!(matches!(error, SocketError::Overrun), "{error}");
    });
}

#[test]
fn an_object_that_exists_is_an_error_only_if_wanted() {
    in_namespace(|socket| {
        commit(socket, |transaction| new_table(transaction, FAMILY));
        let table = NftTable::new(FAMILY, TABLE);
        commit(socket, |transaction| transaction.new_table(&table, IfExists::Keep));
        let mut transaction = Transaction::begin(5, None);
        transaction.new_table(&table, IfExists::Fail);
        let CommitError::Refused(refusals) = socket.commit(&transaction.finish().unwrap()).unwrap_err()
        else {
            panic!()
        };
        assert_eq!(
            refusals.first().map(|refusal| (refusal.sequence, refusal.errno)),
            Some((6, Errno::EEXIST))
        );
    });
}

#[test]
fn a_list_of_a_missing_table_is_refused() {
    in_namespace(|socket| {
        let mut request = request::elements(FAMILY, "missing", "missing");
        let error = socket.dump(&mut request, |_| Ok(())).unwrap_err();
        assert_eq!(error.errno(), Some(Errno::ENOENT), "{error}");
        let tables = list(
            socket,
            request::tables(FAMILY),
            event(|event| match event {
                NftablesEvent::NewTable(table) => Some(table),
                _ => None,
            }),
        );
        assert_eq!(tables, []);
    });
}

#[test]
fn rules_are_replaced_inserted_and_deleted_by_handle() {
    in_namespace(|socket| {
        let rule = |verdict| Rule::new(FAMILY, TABLE, "chain", vec![Expr::verdict(verdict)]);
        let verdicts = |socket: &mut Socket| {
            list(
                socket,
                request::rules(FAMILY, TABLE, Some("chain")),
                event(|event| match event {
                    NftablesEvent::NewRule(rule) => Some((rule.handle.unwrap(), rule.expressions)),
                    _ => None,
                }),
            )
        };
        commit(socket, |transaction| {
            new_table(transaction, FAMILY);
            transaction.new_chain(&Chain::regular(FAMILY, TABLE, "chain"), IfExists::Fail);
            transaction.append_rule(&rule(Verdict::Accept));
            transaction.insert_rule(&rule(Verdict::Drop));
        });
        let found = verdicts(socket);
        let expressions: Vec<_> = found.iter().map(|(_, expressions)| expressions.clone()).collect();
        assert_eq!(expressions, [[Expr::verdict(Verdict::Drop)], [Expr::verdict(Verdict::Accept)]]);
        let [(first, _), (second, _)] = found.as_slice() else { panic!() };
        commit(socket, |transaction| {
            transaction.delete_rule(FAMILY, TABLE, "chain", *first);
            transaction.replace_rule(&Rule { handle: Some(*second), ..rule(Verdict::Return) });
        });
        let found: Vec<_> = verdicts(socket).into_iter().map(|(_, expressions)| expressions).collect();
        assert_eq!(found, [[Expr::verdict(Verdict::Return)]]);
        commit(socket, |transaction| {
            transaction.flush_chain(FAMILY, TABLE, "chain");
            transaction.delete_chain(FAMILY, TABLE, "chain");
        });
    });
}

/// Lists objects while another socket adds a table after the first reply.
fn list_disturbed(
    socket: &mut Socket,
    name: &str,
    mut request: portolan_wire::Request,
) -> Result<(), SocketError> {
    let mut other = Socket::open(Protocol::Netfilter).unwrap();
    let mut disturbed = false;
    socket.dump(&mut request, |_| {
        if !disturbed {
            commit(&mut other, |transaction| {
                transaction.new_table(&NftTable::new(FAMILY, name), IfExists::Fail)
            });
            disturbed = true;
        }
        Ok(())
    })
}

#[test]
fn a_list_that_changes_meanwhile_is_reported() {
    in_namespace(|socket| {
        commit(socket, |transaction| {
            new_table(transaction, FAMILY);
            transaction.new_set(&map("map"), IfExists::Fail);
            for index in 0..5_000 {
                transaction
                    .new_chain(&Chain::regular(FAMILY, TABLE, format!("chain-{index}")), IfExists::Fail);
            }
            let mut writer = transaction.elements(ElementsOperation::Create, FAMILY, TABLE, "map");
            for index in 0..20_000_u32 {
                writer.push(&ElementRef::mapping(&index.to_be_bytes(), DataRef::Value(&[0; 4])));
            }
        });
        let error = list_disturbed(socket, "one", request::chains(FAMILY)).unwrap_err();
        assert!(matches!(error, SocketError::Interrupted), "{error}");
        let error = list_disturbed(socket, "two", request::elements(FAMILY, TABLE, "map")).unwrap_err();
        assert!(matches!(error, SocketError::Interrupted), "{error}");
        socket.dump(&mut request::chains(FAMILY), |_| Ok(())).unwrap();
    });
}

fn summary(event: &NftablesEvent<'_>) -> String {
    let name = match event {
        NftablesEvent::NewTable(_) => "table",
        NftablesEvent::DeleteTable(_) => "-table",
        NftablesEvent::NewChain(_) => "chain",
        NftablesEvent::DeleteChain(_) => "-chain",
        NftablesEvent::NewRule(_) => "rule",
        NftablesEvent::DeleteRule(_) => "-rule",
        NftablesEvent::NewSet(_) => "set",
        NftablesEvent::DeleteSet(_) => "-set",
        NftablesEvent::NewElements(_) => "element",
        NftablesEvent::DeleteElements(_) => "-element",
        NftablesEvent::Generation(_) => "generation",
        NftablesEvent::Other { kind } => return format!("other {kind}"),
    };
    name.to_owned()
}

fn sorted(mut names: Vec<&str>) -> Vec<&str> {
    names.sort_unstable();
    names
}

fn await_readable(socket: &Socket) {
    let deadline = Instant::now() + Duration::from_secs(60);
    let timeout = Timespec { tv_sec: 5, tv_nsec: 0 };
    let ready = poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&timeout)).unwrap();
    assert!(ready == 1 && Instant::now() < deadline, "no notification came");
}
