{{/* The labels by which pods are selected; of a list of the root and a component. */}}
{{- define "pocketmq.selector" -}}
app.kubernetes.io/name: pocketmq
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "pocketmq.metadata" -}}
name: {{ (index . 0).Release.Name }}-{{ index . 1 }}
labels:
  {{- include "pocketmq.labels" . | nindent 2 }}
{{- end }}

{{- define "pocketmq.labels" -}}
{{ include "pocketmq.selector" . }}
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
helm.sh/chart: pocketmq-{{ (index . 0).Chart.Version }}
{{- end }}

{{/* What the pods of all components have in their spec; of a list of the root and the component's values. */}}
{{- define "pocketmq.pod" -}}
automountServiceAccountToken: false
# Its variables for Services begin with their names, as PocketMQ's settings do with POCKETMQ_.
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- with (index . 0).Values.image.pullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
{{- with (index . 1).pod }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "pocketmq.container" -}}
image: "{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}"
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{/* The probes of a server. Its /livez answers while it recovers the store, so no start is too long. */}}
{{- define "pocketmq.probes" -}}
livenessProbe:
  httpGet: {path: /livez, port: metrics}
  timeoutSeconds: 6
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: metrics}
  periodSeconds: 2
  timeoutSeconds: 6
{{- end }}

{{- define "pocketmq.nameservers" -}}
{{- $root := . -}}
{{- range $i := until (int .Values.nameserver.replicas) -}}
{{- if $i }};{{ end }}{{ $root.Release.Name }}-nameserver-{{ $i }}.{{ $root.Release.Name }}-nameserver.{{ $root.Release.Namespace }}.svc.{{ $root.Values.clusterDomain }}:9876
{{- end -}}
{{- end }}

{{/* The options of a server for accounts and TLS. */}}
{{- define "pocketmq.security" -}}
{{- if .Values.acl.secret }}
- --set=aclEnable=true
- --set=pocketmqAclFile=/etc/pocketmq/acl/plain_acl.yml
{{- end }}
{{- if .Values.tls.secret }}
- --set=tls.server.mode={{ .Values.tls.mode }}
- --set=tls.server.certPath=/etc/pocketmq/tls/tls.crt
- --set=tls.server.keyPath=/etc/pocketmq/tls/tls.key
{{- end }}
{{- end }}

{{- define "pocketmq.mounts" -}}
- {name: data, mountPath: /var/lib/pocketmq}
{{- if .Values.acl.secret }}
- {name: acl, mountPath: /etc/pocketmq/acl, readOnly: true}
{{- end }}
{{- if .Values.tls.secret }}
- {name: tls, mountPath: /etc/pocketmq/tls, readOnly: true}
{{- end }}
{{- end }}

{{/* Kubernetes gives these files to root, and lets the group of the pod read them. */}}
{{- define "pocketmq.secrets" -}}
{{- if .Values.acl.secret }}
- name: acl
  secret: {secretName: {{ .Values.acl.secret }}, defaultMode: 0400}
{{- end }}
{{- if .Values.tls.secret }}
- name: tls
  secret: {secretName: {{ .Values.tls.secret }}, defaultMode: 0400}
{{- end }}
{{- end }}

{{/* The certificate alone, for what only connects. */}}
{{- define "pocketmq.ca" -}}
- name: tls
  secret: {secretName: {{ .Values.tls.secret }}, items: [{key: ca.crt, path: ca.crt}]}
{{- end }}

{{- define "pocketmq.claims" -}}
volumeClaimTemplates:
  - metadata: {name: data}
    spec:
      accessModes: [ReadWriteOnce]
      {{- with .class }}
      storageClassName: {{ . }}
      {{- end }}
      resources: {requests: {storage: {{ .size }}}}
{{- end }}
