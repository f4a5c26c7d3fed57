//! The oldest supported `nft` lists objects written by `portolan-wire` in readable form.

use std::process::Command;

use portolan_wire::nftables::*;

use super::{TABLE, commit, in_namespace};

const FAMILY: Family = Family::IPV4;

const LISTING: &str = r#"table ip portolan-test {
	comment "a table"
	set addresses {
		type ipv4_addr
		comment "a set"
		elements = { 10.0.0.1 comment "an element" }
	}

	map services {
		type ipv4_addr . inet_proto . inet_service : mark
		comment "a map"
		elements = { 10.0.0.1 . tcp . 443 : 0x00000007 }
	}

	map verdicts {
		type mark : verdict
		elements = { 0x00000007 : goto target }
	}

	chain target {
		comment "a chain"
		accept comment "a rule"
	}
}
"#;

#[test]
fn nft_lists_names_types_and_comments() {
    in_namespace(|socket| {
        let key = concatenated(&[DataType::IPV4_ADDR, DataType::INET_PROTO, DataType::INET_SERVICE]);
        let set =
            |id, name: &str, key_type, length| Set { id, ..Set::new(FAMILY, TABLE, name, key_type, length) };
        let sets = [
            Set {
                userdata: UserData::set(ByteOrder::Network, None, "a set"),
                ..set(1, "addresses", DataType::IPV4_ADDR, 4)
            },
            Set {
                data: Some(SetData::Value { kind: DataType::MARK, length: 4 }),
                userdata: UserData::set(ByteOrder::Network, Some(ByteOrder::Host), "a map"),
                ..set(2, "services", key, 12)
            },
            Set {
                data: Some(SetData::Verdict),
                userdata: UserData::set(ByteOrder::Host, None, ""),
                ..set(3, "verdicts", DataType::MARK, 4)
            },
        ];
        let comment = UserData::comment("an element");
        let seven = 7_u32.to_ne_bytes();
        let elements = [
            ("addresses", ElementRef { userdata: comment.as_bytes(), ..ElementRef::key(&[10, 0, 0, 1]) }),
            (
                "services",
                ElementRef::mapping(&[10, 0, 0, 1, 6, 0, 0, 0, 1, 187, 0, 0], DataRef::Value(&seven)),
            ),
            ("verdicts", ElementRef::mapping(&seven, DataRef::Verdict(Verdict::Goto("target")))),
        ];
        let rule = Rule::new(FAMILY, TABLE, "target", vec![Expr::verdict(Verdict::Accept)]);
        commit(socket, |transaction| {
            let userdata = UserData::comment("a table");
            transaction.new_table(&NftTable { userdata, ..NftTable::new(FAMILY, TABLE) }, IfExists::Fail);
            let userdata = UserData::comment("a chain");
            let chain = Chain { userdata, ..Chain::regular(FAMILY, TABLE, "target") };
            transaction.new_chain(&chain, IfExists::Fail);
            for set in &sets {
                transaction.new_set(set, IfExists::Fail);
            }
            for (set, element) in &elements {
                transaction.elements(ElementsOperation::Add, FAMILY, TABLE, set).push(element);
            }
            transaction.append_rule(&Rule { userdata: UserData::comment("a rule"), ..rule });
        });
        let listing = Command::new("nft").args(["list", "table", "ip", TABLE]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&listing.stderr), "");
        assert_eq!(String::from_utf8_lossy(&listing.stdout), LISTING);
    });
}
