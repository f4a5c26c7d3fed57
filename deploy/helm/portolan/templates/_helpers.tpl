{{- define "portolan.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "portolan.serviceAccount" -}}
{{- default (include "portolan.name" .) .Values.serviceAccount.name -}}
{{- end -}}

{{- define "portolan.image" -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}

{{/* The labels of the DaemonSet's selector, which is immutable. */}}
{{- define "portolan.selector" -}}
app.kubernetes.io/name: {{ include "portolan.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "portolan.labels" -}}
{{ include "portolan.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{/* Command of the agent and its init container. */}}
{{- define "portolan.command" -}}
- /usr/local/bin/portolan-proxy
- --config=/var/lib/kube-proxy/config.conf
- --hostname-override=$(NODE_NAME)
{{- /* Both containers must choose the same. Only an agent that is root may call iptables. */}}
{{- if include "portolan.iptables" . }}
- --default-mode=iptables
- --userspace-capture=auto
{{- else }}
- --default-mode=nftables
- --userspace-capture=tproxy
{{- end }}
{{- range .Values.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end -}}

{{- define "portolan.environment" -}}
env:
  - name: NODE_NAME
    valueFrom:
      fieldRef:
        fieldPath: spec.nodeName
volumeMounts:
  - name: kube-proxy
    mountPath: /var/lib/kube-proxy
    readOnly: true
  {{- if include "portolan.iptables" . }}
  - name: xtables-lock
    mountPath: /run/xtables.lock
  {{- end }}
{{- end -}}

{{/* Not empty if the mode calls the iptables programs. */}}
{{- define "portolan.iptables" -}}
{{- $configuration := default dict .Values.configuration }}
{{- if has (default "" $configuration.mode) (list "" "iptables" "ipvs") -}}
true
{{- end -}}
{{- end -}}

{{/* Not empty if the agent is root. */}}
{{- define "portolan.root" -}}
{{- if or .Values.runAsRoot (include "portolan.iptables" .) -}}
true
{{- end -}}
{{- end -}}

{{/* The type of a folder of the node: created by the kubelet it belongs to root, and another user cannot write there. */}}
{{- define "portolan.folderType" -}}
{{- ternary "DirectoryOrCreate" "Directory" (or (ne .path (default "" (default dict .root.Values.controlSocket).hostPath)) (not (empty (include "portolan.root" .root)))) -}}
{{- end -}}

{{/* The port of an IPV4:PORT or an [IPV6]:PORT, or a default for an address without one. */}}
{{- define "portolan.port" -}}
{{- $port := regexFind "^([^:]+|\\[.+\\]):[0-9]+$" .address | regexFind "[0-9]+$" -}}
{{- default .default $port -}}
{{- end -}}

{{/* The IP of an IP or IP:PORT, without brackets; empty if it means every address. */}}
{{- define "portolan.host" -}}
{{- $host := regexReplaceAll "^([^:]+):[0-9]+$|^\\[(.+)\\](:[0-9]+)?$" . "${1}${2}" -}}
{{- if not (has $host (list "0.0.0.0" "::")) -}}
{{- $host -}}
{{- end -}}
{{- end -}}

{{/* The address of a server for a client on the node, as HOST:PORT. */}}
{{- define "portolan.local" -}}
{{- $host := default "127.0.0.1" (include "portolan.host" .address) -}}
{{ ternary (printf "[%s]" $host) $host (contains ":" $host) }}:{{ include "portolan.port" . }}
{{- end -}}

{{/* The target of the probes. Without a host it is the node's address, at which a server with another address does not answer. */}}
{{- define "portolan.probe" -}}
httpGet:
  {{- with include "portolan.host" .address }}
  host: {{ . | quote }}
  {{- end }}
  path: {{ .path }}
  port: healthz
{{- end -}}
