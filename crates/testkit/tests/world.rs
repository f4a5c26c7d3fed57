use portolan_testkit::*;
#[test]
fn t() {
    let t = std::time::Instant::now();
    let w = World::builder().pods(6).remote_pods(2).build().unwrap();
    println!("{:?}", t.elapsed());
    for p in w.pods().iter().chain(w.remote_pods()) {
        for pr in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
            w.serve(p, pr, 80).unwrap();
        }
    }
    println!("{:?}", t.elapsed());
    let mut ps = vec![];
    for from in [
        w.node().namespace(),
        w.remote_node().namespace(),
        w.client().namespace(),
        w.pods()[0].namespace(),
        w.remote_pods()[0].namespace(),
    ] {
        for to in w.pods().iter().chain(w.remote_pods()) {
            for pr in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
                for f in Family::BOTH {
                    for port in [80, 81] {
                        ps.push((from, Probe::new(pr, (to.address(f), port).into())));
                    }
                }
            }
        }
    }
    let r = w.probe_many(&ps).unwrap();
    println!("{:?} {}", t.elapsed(), r.len());
    for (p, r) in ps.iter().zip(r) {
        println!("{} {} {} {:?}", p.0.name(), p.1.protocol, p.1.destination, r);
    }
    println!("{}", w.node().namespace().output("ip", &["addr"]).unwrap());
}
