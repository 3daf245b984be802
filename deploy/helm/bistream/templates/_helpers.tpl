{{- define "bistream.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{/* At most 40 characters: the longest suffix has 11, and a label may have 63. */}}
{{- define "bistream.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else if contains $name .Release.Name }}
{{- .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "bistream.headless" -}}
{{ include "bistream.fullname" . }}-headless
{{- end }}

{{- define "bistream.envoy" -}}
{{ include "bistream.fullname" . }}-envoy
{{- end }}

{{- define "bistream.interfaces" -}}
{{ include "bistream.fullname" . }}-interfaces
{{- end }}

{{/* Of one component: dict "root" $ "component" "server" */}}
{{- define "bistream.selectorLabels" -}}
app.kubernetes.io/name: {{ include "bistream.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "bistream.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{ include "bistream.selectorLabels" . }}
{{- end }}

{{- define "bistream.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "bistream.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{/* What the pods of every component have: dict "root" $ "values" (with its own) "securityContext" (of the pod) */}}
{{- define "bistream.pod" -}}
serviceAccountName: {{ include "bistream.serviceAccountName" .root }}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext: {{- toYaml .securityContext | nindent 2 }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "bistream.keysSecret" -}}
{{- if .Values.apiKeys.existingSecret }}{{ .Values.apiKeys.existingSecret }}
{{- else if .Values.apiKeys.keys }}{{ include "bistream.fullname" . }}-keys
{{- end }}
{{- end }}

{{/* The name by which servers are found, all of them. */}}
{{- define "bistream.headlessHost" -}}
{{ include "bistream.headless" . }}.{{ .Release.Namespace }}.svc.{{ .Values.envoy.clusterDomain }}
{{- end }}

{{/* Whether the servers' own gates have TLS; not empty: yes. Envoy ends it before them. */}}
{{- define "bistream.gateTls" -}}
{{- if and .Values.tls.existingSecret (not .Values.envoy.enabled) }}true{{ end }}
{{- end }}

{{- define "bistream.checkValues" -}}
{{- if and .Values.apiKeys.existingSecret .Values.apiKeys.keys }}
{{- fail "apiKeys: give existingSecret or keys, not both." }}
{{- end }}
{{- if and (eq .Values.model.source "persistentVolumeClaim") (not .Values.model.persistentVolumeClaim.claimName) }}
{{- fail "model.persistentVolumeClaim.claimName is empty; name the claim that holds the checkpoint, or set model.source." }}
{{- end }}
{{- if and (eq .Values.kernelCache.type "persistentVolumeClaim") (not .Values.kernelCache.persistentVolumeClaim.claimName) }}
{{- fail "kernelCache.persistentVolumeClaim.claimName is empty; name a claim, or set kernelCache.type to emptyDir." }}
{{- end }}
{{- if and .Values.interfaces.enabled (include "bistream.keysSecret" .) (not .Values.interfaces.keySecret) }}
{{- fail "interfaces.keySecret is empty; name a Secret whose entry key is one of the API keys, with which the interfaces call the servers." }}
{{- end }}
{{- if and .Values.interfaces.enabled .Values.tls.clientCa (include "bistream.gateTls" .) (not .Values.interfaces.serverTls.certificateSecret) }}
{{- fail "interfaces.serverTls.certificateSecret is empty; name a Secret of the type kubernetes.io/tls that ca.crt of tls.existingSecret has signed." }}
{{- end }}
{{- if and .Values.tls.clientCa (not .Values.tls.existingSecret) }}
{{- fail "tls.clientCa needs tls.existingSecret, a Secret with tls.crt, tls.key and ca.crt." }}
{{- end }}
{{- if and (eq .Values.model.source "download") (not .Values.model.directory) }}
{{- fail "model.directory is empty; the download needs the name of a folder that it makes." }}
{{- end }}
{{- if .Values.autoscaling.enabled }}
{{- if not .Values.autoscaling.prometheusAddress }}
{{- fail "autoscaling.prometheusAddress is empty; KEDA asks that Prometheus for the open sessions." }}
{{- end }}
{{- if gt (int .Values.autoscaling.minReplicas) (int .Values.autoscaling.maxReplicas) }}
{{- fail "autoscaling.minReplicas is greater than autoscaling.maxReplicas." }}
{{- end }}
{{- end }}
{{- if and (eq (int .Values.strategy.maxSurge) 0) (eq (int .Values.strategy.maxUnavailable) 0) }}
{{- fail "strategy: maxSurge and maxUnavailable are both 0, so no server could ever be replaced." }}
{{- end }}
{{- $ports := list (int .Values.ports.grpc) (int .Values.ports.http) (int .Values.ports.health) 8002 }}
{{- if ne (len ($ports | uniq)) 4 }}
{{- fail "ports: grpc, http and health must differ, and 8002 is Triton's (metrics on loopback)." }}
{{- end }}
{{- if .Values.envoy.enabled }}
{{- $ports := list (int .Values.ports.grpc) (int .Values.ports.http) (int .Values.envoy.healthPort) 9901 }}
{{- if ne (len ($ports | uniq)) 4 }}
{{- fail "envoy: healthPort, ports.grpc and ports.http must differ, and 9901 is Envoy's own (administration on loopback)." }}
{{- end }}
{{- end }}
{{- end }}

{{/* Whole numbers come as floats, which would be written as 1.048576e+06. */}}
{{- define "bistream.text" -}}
{{- if and (kindIs "float64" .) (eq (float64 (int64 .)) .) }}{{ int64 . }}{{ else }}{{ toString . }}{{ end }}
{{- end }}

{{/* JSON of model -> parameter -> value: maxSessions and voices, then settings. */}}
{{- define "bistream.settings" -}}
{{- $own := dict }}
{{- range $model := list "cosyvoice2_bistream" "llm_bistream" "token2wav" }}
{{- $_ := set $own $model (dict "max_sessions" $.Values.maxSessions) }}
{{- end }}
{{- if .Values.voices.claimName }}
{{- range $model := list "cosyvoice2_bistream" "token2wav" }}
{{- $_ := set (get $own $model) "voices_dir" "/voices" }}
{{- end }}
{{- end }}
{{- mergeOverwrite $own (deepCopy .Values.settings) | toJson }}
{{- end }}

{{/* MiB of /dev/shm, as bistream/keeper/host_limits.py computes it: the recordings of all sessions at once, float32
     samples at 16 kHz, and 6 MiB for each model process, that of spark_tts among them whether the family has it or not. */}}
{{- define "bistream.sharedMemory" -}}
{{- if .Values.sharedMemory.sizeLimit }}{{ .Values.sharedMemory.sizeLimit }}{{ else }}
{{- $settings := include "bistream.settings" . | fromJson }}
{{- $parameters := get $settings "cosyvoice2_bistream" }}
{{- $seconds := float64 (default 30 $parameters.max_reference_s) }}
{{- $processes := 5 }}
{{- range $model := list "cosyvoice2" "spark_tts" }}
{{- $processes = add $processes (int64 (float64 (default 1 (default (dict) (get $settings $model)).bls_instance_num))) }}
{{- end }}
{{- $recordings := divf (mulf (float64 $parameters.max_sessions) $seconds 64000.0) 1048576.0 | ceil }}
{{- add (int64 $recordings) (mul 6 $processes) }}Mi
{{- end }}
{{- end }}

{{/* How long a pod may take to end, its preStop hook included. */}}
{{- define "bistream.gracePeriod" -}}
{{- with .Values.drain }}{{ add (int .preStopSeconds) (int .timeoutSeconds) (int .exitTimeoutSeconds) 20 }}{{ end }}
{{- end }}

{{- define "bistream.modelDir" -}}
{{- if .Values.model.directory }}/models/{{ .Values.model.directory }}{{ else }}/models{{ end }}
{{- end }}
