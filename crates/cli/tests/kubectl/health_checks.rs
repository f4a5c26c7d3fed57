//! Server-side apply of EndpointSlices whose conditions are results of health checks.

use std::net::{SocketAddr, TcpListener};

use portolan_testkit::eventually;
use serde_json::Value;

use super::{PATIENCE, SERVER, Shell, shells_with};

const SERVICE: &str = "
apiVersion: v1
kind: Service
metadata:
  name: checked
  annotations: {portolan.dev/health-check: tcp, portolan.dev/health-check-interval: 1s}
spec:
  ports: [{port: 80}]
";

/// Returns an EndpointSlice with these endpoints of 192.0.2.0/24.
fn slice(hosts: &[u8]) -> String {
    let endpoints: Vec<String> =
        hosts.iter().map(|host| format!("- addresses: [192.0.2.{host}]\n")).collect();
    let endpoints = endpoints.concat();
    format!(
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\naddressType: IPv4\nports: [{{port: 8080}}]\n\
         metadata: {{name: checked-1, labels: {{kubernetes.io/service-name: checked}}}}\nendpoints:\n{endpoints}"
    )
}

/// Returns `ready` and `serving` of each endpoint.
fn conditions(slice: &Value) -> Vec<[Option<bool>; 2]> {
    let endpoints = slice["endpoints"].as_array().unwrap().iter().map(|endpoint| &endpoint["conditions"]);
    endpoints.map(|it| ["ready", "serving"].map(|name| it[name].as_bool())).collect()
}

/// Returns the managers that own the endpoints of the slice.
fn owners(shell: &Shell) -> Vec<String> {
    // An old kubectl has no --show-managed-fields, and shows them always.
    let list = shell.good(&format!(
        "{SERVER} get --raw /apis/discovery.k8s.io/v1/namespaces/shop/endpointslices/checked-1"
    ));
    let slice: Value = serde_json::from_str(&list).unwrap();
    let entries = slice["metadata"]["managedFields"].as_array().unwrap().iter();
    let of_endpoints = entries.filter(|entry| entry["fieldsV1"]["f:endpoints"].is_object());
    of_endpoints.map(|entry| entry["manager"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn an_endpoint_slice_with_results_is_applied_again() {
    for shell in shells_with(&["--health-checks"]) {
        shell.good("ip address add 192.0.2.1/32 dev lo && ip address add 192.0.2.2/32 dev lo");
        let backend = SocketAddr::from(([192, 0, 2, 1], 8080));
        let _backend = shell.node.run(|| TcpListener::bind(backend)).unwrap().unwrap();
        let get = || shell.object("endpointslice checked-1");
        let apply = |hosts: &[u8]| {
            shell.write("slice.yaml", &slice(hosts));
            shell.kubectl("apply --server-side -f slice.yaml")
        };
        let (healthy, failing) = ([Some(true); 2], [Some(false); 2]);
        shell.kubectl("create namespace shop");
        shell.write("service.yaml", SERVICE);
        shell.kubectl("apply --server-side -f service.yaml");
        apply(&[1, 2]);
        eventually(PATIENCE, "results", || conditions(&get()) == [healthy, failing]).unwrap();
        assert_eq!(owners(&shell), ["kubectl"]);

        let before = get();
        apply(&[1, 2]);
        assert_eq!(get(), before, "the same version");
        apply(&[3, 2, 1]);
        let after = conditions(&get());
        assert_eq!((after[0][0], &after[1..]), (Some(false), &[failing, healthy][..]));
        eventually(PATIENCE, "a result", || conditions(&get()) == [failing, failing, healthy]).unwrap();
        assert_eq!(owners(&shell), ["kubectl"]);
        // Managers still are protected from each other.
        shell.write("slice.yaml", &slice(&[1]));
        let conflict =
            shell.bad(&format!("{SERVER} -n shop apply --server-side --field-manager other -f slice.yaml"));
        assert!(conflict.contains("kubectl") && conflict.contains(".endpoints"), "{conflict}");
    }
}
