{{- define "dualpace.name" -}}
{{- default .Release.Name .Values.nameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "dualpace.serviceAccount" -}}
{{- with .Values.operator.serviceAccount -}}
{{- if .name }}{{ .name }}{{ else if .create }}{{ include "dualpace.name" $ }}{{ else }}default{{ end -}}
{{- end -}}
{{- end -}}

{{- define "dualpace.selector" -}}
app.kubernetes.io/name: dualpace-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "dualpace.labels" -}}
{{ include "dualpace.selector" . }}
app.kubernetes.io/part-of: dualpace
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{/* An image's reference. Takes a list: the root context and the image's values. */}}
{{- define "dualpace.image" -}}
{{- $root := index . 0 -}}
{{- $image := index . 1 -}}
{{- with $root.Values.global.imageRegistry }}{{ . }}/{{ end -}}
{{ $image.repository }}
{{- if $image.digest }}@{{ $image.digest }}{{ else }}:{{ default $root.Chart.AppVersion $image.tag }}{{ end -}}
{{- end -}}

{{/* Rights in the namespaces of services: one list, for a Role or a ClusterRole. */}}
{{- define "dualpace.namespacedRules" -}}
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, delete]
- apiGroups: [""]
  resources: [configmaps, services]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, create, delete]
- apiGroups: [serving.dualpace.io]
  resources: [dualpaceservices]
  verbs: [get, list, watch]
- apiGroups: [serving.dualpace.io]
  resources: [dualpaceservices/status]
  verbs: [patch]
{{- end -}}
