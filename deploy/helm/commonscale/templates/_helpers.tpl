{{- define "commonscale.name" -}}
{{- default .Release.Name .Values.nameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "commonscale.labels" -}}
app.kubernetes.io/name: commonscale
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{/* Which pods: never changes between releases. Called with (dict "root" $ "component" "coordinator"). */}}
{{- define "commonscale.selector" -}}
app.kubernetes.io/name: commonscale
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "commonscale.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "commonscale.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* A list of strings, numbers or booleans, or one of them, as TOML. JSON's are the same. */}}
{{- define "commonscale.toml" -}}
{{- toJson . -}}
{{- end -}}
