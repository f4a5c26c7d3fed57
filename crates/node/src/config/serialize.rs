//! From [`Configuration`] to a v1alpha1 object, for `/configz`, and to a file, for `--write-config-to`.

use std::net::SocketAddr;

use ipnet::IpNet;
use serde_json::{Value, json};

use super::document::{API_VERSION, KIND};
use super::duration::format_duration;
use super::{Configuration, LogFormat, Logging, Mode, OutputOptions, Portolan, own};
use crate::address::NodePortAddresses;

pub(super) fn to_v1alpha1(c: &Configuration) -> Value {
    let mut object = json!({
        "apiVersion": API_VERSION,
        "kind": KIND,
        "featureGates": c.feature_gates,
        "logging": logging(&c.logging),
        "hostnameOverride": c.hostname_override.as_deref().unwrap_or_default(),
        "bindAddress": c.bind_address.to_string(),
        "healthzBindAddress": address(c.healthz_bind_address),
        "metricsBindAddress": address(c.metrics_bind_address),
        "bindAddressHardFail": c.bind_address_hard_fail,
        "enableProfiling": c.enable_profiling,
        "showHiddenMetricsForVersion": c.show_hidden_metrics_for_version,
        "mode": c.mode.map_or("", Mode::name),
        "winkernel": {
            "networkName": c.winkernel.network_name,
            "sourceVip": c.winkernel.source_vip,
            "enableDSR": c.winkernel.enable_dsr,
            "rootHnsEndpointName": c.winkernel.root_hns_endpoint_name,
            "forwardHealthCheckVip": c.winkernel.forward_health_check_vip,
        },
        "detectLocalMode": c.detect_local_mode.name(),
        "detectLocal": {
            "bridgeInterface": c.detect_local.bridge_interface,
            "interfaceNamePrefix": c.detect_local.interface_name_prefix,
        },
        "clusterCIDR": cidrs(&c.cluster_cidrs).join(","),
        "nodePortAddresses": node_port_addresses(&c.node_port_addresses),
        "oomScoreAdj": c.oom_score_adj,
        "configSyncPeriod": format_duration(c.config_sync_period),
        "portRange": c.port_range,
        "udpIdleTimeout": format_duration(c.udp_idle_timeout),
        "windowsRunAsService": c.windows_run_as_service,
        "portolan": {
            "controlSocket": c.portolan.control_socket,
            "controlSocketGroup": c.portolan.control_socket_group,
            "stateOnAnyAddress": c.portolan.state_on_any_address,
            "recorderBytes": c.portolan.recorder_bytes,
            "serviceCounters": c.portolan.service_counters,
            "passiveHealthChecks": c.portolan.passive_health_checks,
            "serviceMetrics": c.portolan.service_metrics,
        },
    });
    if let Some(fields) = object.as_object_mut() {
        let sections = [
            ("clientConnection", client_connection(c)),
            ("iptables", iptables(c)),
            ("ipvs", ipvs(c)),
            ("nftables", nftables(c)),
            ("conntrack", conntrack(c)),
            ("addressGuard", own::guard(&c.address_guard)),
            ("readiness", own::readiness(&c.readiness)),
        ];
        fields.extend(sections.map(|(name, section)| (name.to_owned(), section)));
    }
    object
}

/// Returns a file with keys in alphabetical order, without the empty fields that kube-proxy leaves out.
pub(super) fn to_yaml(c: &Configuration) -> String {
    let mut object = to_v1alpha1(c);
    if let Some(fields) = object.as_object_mut() {
        if c.feature_gates.is_empty() {
            fields.remove("featureGates");
        }
        if !c.windows_run_as_service {
            fields.remove("windowsRunAsService");
        }
        // kube-proxy does not know these sections.
        let default = Configuration::default();
        if c.address_guard == default.address_guard {
            fields.remove("addressGuard");
        }
        if c.readiness == default.readiness {
            fields.remove("readiness");
        }
        // kube-proxy rejects these fields.
        if c.udp_idle_timeout.is_zero() {
            fields.remove("udpIdleTimeout");
        }
        if c.portolan == Portolan::default() {
            fields.remove("portolan");
        }
    }
    let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
    // The value has only texts, numbers, and mappings with text keys, which can always be serialized.
    serde_saphyr::to_string_with_options(&object, options).unwrap_or_default()
}

fn client_connection(c: &Configuration) -> Value {
    json!({
        "kubeconfig": c.client_connection.kubeconfig,
        "acceptContentTypes": c.client_connection.accept_content_types,
        "contentType": c.client_connection.content_type,
        "qps": number(c.client_connection.qps),
        "burst": c.client_connection.burst,
    })
}

/// Returns the shortest decimal of a number: 7.3 and 5, not 7.300000190734863 and 5.0.
fn number(value: f32) -> Value {
    let text = value.to_string();
    let whole = text.parse::<i64>().map(Value::from);
    whole.or_else(|_| text.parse::<f64>().map(Value::from)).unwrap_or(Value::Null)
}

fn logging(c: &Logging) -> Value {
    let vmodule: Vec<Value> = c
        .vmodule
        .iter()
        .map(|item| json!({"filePattern": item.file_pattern, "verbosity": item.verbosity}))
        .collect();
    json!({
        "format": match c.format { LogFormat::Text => "text", LogFormat::Json => "json" },
        "flushFrequency": format_duration(c.flush_frequency),
        "verbosity": c.verbosity,
        "vmodule": vmodule,
        "options": { "text": output_options(&c.text), "json": output_options(&c.json) },
    })
}

fn output_options(c: &OutputOptions) -> Value {
    json!({ "splitStream": c.split_stream, "infoBufferSize": c.info_buffer_size })
}

fn iptables(c: &Configuration) -> Value {
    json!({
        "masqueradeBit": c.iptables.masquerade_bit,
        "masqueradeAll": c.iptables.masquerade_all,
        "localhostNodePorts": c.iptables.localhost_node_ports,
        "syncPeriod": format_duration(c.iptables.sync_period),
        "minSyncPeriod": format_duration(c.iptables.min_sync_period),
    })
}

fn ipvs(c: &Configuration) -> Value {
    json!({
        "syncPeriod": format_duration(c.ipvs.sync_period),
        "minSyncPeriod": format_duration(c.ipvs.min_sync_period),
        "scheduler": c.ipvs.scheduler,
        "excludeCIDRs": cidrs(&c.ipvs.exclude_cidrs),
        "strictARP": c.ipvs.strict_arp,
        "tcpTimeout": format_duration(c.ipvs.tcp_timeout),
        "tcpFinTimeout": format_duration(c.ipvs.tcp_fin_timeout),
        "udpTimeout": format_duration(c.ipvs.udp_timeout),
    })
}

fn nftables(c: &Configuration) -> Value {
    json!({
        "masqueradeBit": c.nftables.masquerade_bit,
        "masqueradeAll": c.nftables.masquerade_all,
        "syncPeriod": format_duration(c.nftables.sync_period),
        "minSyncPeriod": format_duration(c.nftables.min_sync_period),
    })
}

fn conntrack(c: &Configuration) -> Value {
    json!({
        "maxPerCore": c.conntrack.max_per_core,
        "min": c.conntrack.min,
        "tcpEstablishedTimeout": format_duration(c.conntrack.tcp_established_timeout),
        "tcpCloseWaitTimeout": format_duration(c.conntrack.tcp_close_wait_timeout),
        "tcpBeLiberal": c.conntrack.tcp_be_liberal,
        "udpTimeout": format_duration(c.conntrack.udp_timeout),
        "udpStreamTimeout": format_duration(c.conntrack.udp_stream_timeout),
    })
}

/// Formats an address. A disabled server has an empty text.
fn address(address: Option<SocketAddr>) -> String {
    address.map(|address| address.to_string()).unwrap_or_default()
}

fn cidrs(list: &[IpNet]) -> Vec<String> {
    list.iter().map(IpNet::to_string).collect()
}

fn node_port_addresses(setting: &NodePortAddresses) -> Value {
    match setting {
        NodePortAddresses::Default => Value::Null,
        NodePortAddresses::Primary => json!(["primary"]),
        NodePortAddresses::Cidrs(list) => json!(cidrs(list)),
    }
}
