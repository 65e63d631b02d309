{{- define "tierkv.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{/* Of one part: (list . "vault"). */}}
{{- define "tierkv.selector" -}}
app.kubernetes.io/name: tierkv
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "tierkv.labels" -}}
{{ include "tierkv.selector" . }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
helm.sh/chart: {{ printf "%s-%s" (index . 0).Chart.Name (index . 0).Chart.Version }}
{{- end }}

{{- define "tierkv.image" -}}
{{- $images := (index . 0).Values.images -}}
image: {{ printf "%s:%s" (index $images (index . 1)) ($images.tag | default (index . 0).Chart.AppVersion) | quote }}
imagePullPolicy: {{ $images.pullPolicy }}
{{- end }}

{{- define "tierkv.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ .Values.user }}
runAsGroup: {{ .Values.user }}
fsGroup: {{ .Values.user }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "tierkv.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "tierkv.accessName" -}}
{{ .Values.access.existingSecret | default (printf "%s-access" (include "tierkv.name" .)) }}
{{- end }}

{{/* Where each vault is found, as its certificate names it. */}}
{{- define "tierkv.vaults" -}}
{{- $name := include "tierkv.name" . -}}
{{- $all := list -}}
{{- range $at := until (int .Values.vault.replicas) -}}
{{- $all = append $all (printf "%s-vault-%d.%s-vault.%s.svc:50051" $name $at $name $.Release.Namespace) -}}
{{- end -}}
{{ $all | toJson }}
{{- end }}

{{/* [cluster] with Valkey in place of vaults. In the clear only where its address says so. */}}
{{- define "tierkv.store" -}}
{{- $address := .Values.store.address -}}
{{- $cluster := dict "kv_cold" $address "ssm_cold" $address "store_prefix" .Values.store.prefix "store_ttl_s" (int .Values.store.ttlSeconds) -}}
{{- if hasPrefix "valkey:" $address -}}{{- $_ := set $cluster "insecure_lan" true -}}{{- end -}}
{{- if .Values.store.caSecret -}}{{- $_ := set $cluster "store_tls_ca" "/run/store/ca.crt" -}}{{- end -}}
{{ $cluster | toJson }}
{{- end }}

{{/* Variables of a container that asks Valkey. */}}
{{- define "tierkv.storeEnv" -}}
{{- with .Values.store.loginSecret -}}
- name: VALKEY_USERNAME
  valueFrom: { secretKeyRef: { name: {{ . }}, key: username } }
- name: VALKEY_PASSWORD
  valueFrom: { secretKeyRef: { name: {{ . }}, key: password } }
{{- end }}
{{- end }}

{{/* Address on which a port listens for other pods: of both families, or of IPv4. */}}
{{- define "tierkv.any" -}}
{{ ternary "[::]" "0.0.0.0" .Values.ipv6 }}
{{- end }}

{{/* Of a Service: IPv6, too, where the cluster has it. */}}
{{- define "tierkv.families" -}}
{{- if .Values.ipv6 }}ipFamilyPolicy: PreferDualStack{{ else }}ipFamilyPolicy: SingleStack{{ end }}
{{- end }}

{{/* A configuration file: (list CONFIG EXTRA); keys of EXTRA replace those of CONFIG. TOML writes these values as JSON does. */}}
{{- define "tierkv.toml" -}}
{{- range $section, $keys := mustMergeOverwrite (index . 0) (mustDeepCopy (index . 1)) }}
[{{ $section }}]
{{- range $key, $value := $keys }}
{{ $key }} = {{ $value | toJson }}
{{- end }}
{{ end }}
{{- end }}

{{/* Empty: whoever reaches the gateway may use it. */}}
{{- define "tierkv.isClosed" -}}
{{- if and .Values.gateway.keysSecret .Values.gateway.tlsSecret }}true{{ end }}
{{- end }}

{{/* Empty: the gateway needs no file that is only its user's. */}}
{{- define "tierkv.gatewayHasFiles" -}}
{{- if or (and (include "tierkv.hasLookups" .) (not .Values.store.address)) .Values.gateway.keysSecret .Values.gateway.tlsSecret }}true{{ end }}
{{- end }}

{{/* Empty: engines publish nothing, because no gateway hears it. */}}
{{- define "tierkv.hasEvents" -}}
{{- if and .Values.gateway.enabled .Values.gateway.events .Values.engine.enabled }}true{{ end }}
{{- end }}

{{/* Empty: the gateway has no way to the vaults. Without events it would not know what to ask for. */}}
{{- define "tierkv.hasLookups" -}}
{{- if and (include "tierkv.hasEvents" .) (gt (int .Values.gateway.lookupMs) 0) }}true{{ end }}
{{- end }}

{{/* tierKV reads secrets only where they are its user's alone; a mounted Secret is root's and its group's. By an image: (list . "vault"). */}}
{{- define "tierkv.accessContainer" -}}
- name: access
  {{- include "tierkv.image" . | nindent 2 }}
  command: [sh, -c, "umask 077 && cp -L /mounted/* /run/access/"]
  securityContext:
    {{- include "tierkv.containerSecurity" . | nindent 4 }}
  resources:
    requests: { cpu: 10m, memory: 16Mi }
    limits: { memory: 64Mi }
  volumeMounts:
    - { name: mounted, mountPath: /mounted, readOnly: true }
    - { name: access, mountPath: /run/access }
{{- end }}

{{/* Only what a kind of pod needs of the Secret: (list . "ca.pem" "token"). */}}
{{- define "tierkv.accessVolumes" -}}
- name: mounted
  secret:
    secretName: {{ include "tierkv.accessName" (index . 0) }}
    defaultMode: 0440
    items:
      {{- range rest . }}
      - { key: {{ . }}, path: {{ . }} }
      {{- end }}
- name: access
  emptyDir: { medium: Memory, sizeLimit: 1Mi }
{{- end }}
