//! kube-rs, with the kubeconfig that `portolan serve kubeconfig` prints.

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{Namespace, Service};
use kube::api::{Api, DeleteParams, ListParams, PostParams, WatchEvent, WatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig as Given};
use kube::{Client, Config};
use portolan_serve::{Kubeconfig, Role};

use crate::client::{DEADLINE, Secure, service, start};

async fn client(secure: &Secure, role: Role, with_token: bool) -> Client {
    let make = if with_token { Kubeconfig::with_token } else { Kubeconfig::with_certificate };
    let printed = make(&secure.pki, &secure.server.url(), None, role, role.default_user()).unwrap();
    let given = Given::from_yaml(printed.text()).unwrap();
    let config = Config::from_custom_kubeconfig(given, &KubeConfigOptions::default()).await.unwrap();
    Client::try_from(config).unwrap()
}

#[test]
fn every_role_works_with_a_certificate_and_with_a_token() {
    let secure = start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        for with_token in [false, true] {
            let test = crud_and_roles(&secure, with_token);
            tokio::time::timeout(DEADLINE, test).await.unwrap();
        }
    });
}

async fn crud_and_roles(secure: &Secure, with_token: bool) {
    let name = if with_token { "token" } else { "certificate" };
    let object: Service = serde_json::from_str(&service(name)).unwrap();
    let admin: Api<Service> = Api::default_namespaced(client(secure, Role::Admin, with_token).await);
    let proxy = client(secure, Role::Proxy, with_token).await;
    let services: Api<Service> = Api::all(proxy.clone());
    let watch = services.watch(&WatchParams::default().fields(&format!("metadata.name={name}")), "0").await;
    let is_change = |event: &kube::Result<WatchEvent<Service>>| !matches!(event, Ok(WatchEvent::Bookmark(_)));
    let mut watch = watch.unwrap().filter(|event| std::future::ready(is_change(event))).boxed();

    admin.create(&PostParams::default(), &object).await.unwrap();
    assert!(matches!(watch.next().await, Some(Ok(WatchEvent::Added(_)))));
    let listed = admin.list(&ListParams::default()).await.unwrap();
    assert_eq!(listed.items[0].metadata.name.as_deref(), Some(name));

    let reader = client(secure, Role::ReadOnly, with_token).await;
    let read: Api<Service> = Api::default_namespaced(reader);
    assert!(read.get(name).await.unwrap().spec.unwrap().cluster_ip.is_some());
    for (what, error) in [
        ("a reader deletes", read.delete(name, &DeleteParams::default()).await.err()),
        (
            "a proxy creates",
            Api::default_namespaced(proxy.clone()).create(&PostParams::default(), &object).await.err(),
        ),
        ("a proxy lists Namespaces", Api::<Namespace>::all(proxy).list(&ListParams::default()).await.err()),
    ] {
        let Some(kube::Error::Api(status)) = error else { panic!("{what}: {error:?}") };
        assert_eq!((status.code, status.reason.as_str()), (403, "Forbidden"), "{what}");
    }
    admin.delete(name, &DeleteParams::default()).await.unwrap();
    assert!(matches!(watch.next().await, Some(Ok(WatchEvent::Deleted(_)))));
}
