{{/* The configuration of Envoy: files/envoy.yaml, filled as bistream/keeper/envoy_config.py fills it without Kubernetes. */}}
{{- define "bistream.envoyConfig" -}}
{{- $values := dict
  "grpc_host" "0.0.0.0"
  "grpc_port" (int .Values.ports.grpc)
  "http_host" "0.0.0.0"
  "http_port" (int .Values.ports.http)
  "admin_port" 9901
  "tls_grpc" (include "bistream.envoyTls" (dict "tls" .Values.tls "protocol" "h2"))
  "tls_http" (include "bistream.envoyTls" (dict "tls" .Values.tls "protocol" "http/1.1"))
  "grpc_endpoints" (include "bistream.envoyEndpoints" (dict "root" $ "port" .Values.ports.grpc))
  "http_endpoints" (include "bistream.envoyEndpoints" (dict "root" $ "port" .Values.ports.http))
  "more_listeners" (include "bistream.envoyHealthListener" . | indent 4 | trim)
  "more_clusters" (include "bistream.envoyAdminCluster" . | indent 4 | trim)
}}
{{- $text := .Files.Get "files/envoy.yaml" }}
{{- range $name, $value := $values }}
{{- $text = replace (printf "${%s}" $name) (toString $value) $text }}
{{- end }}
{{- $text }}
{{- end }}

{{- define "bistream.envoyTls" -}}
{{- if .tls.existingSecret }}
{{- $certificate := dict "certificate_chain" (dict "filename" "/secrets/tls/tls.crt") "private_key" (dict "filename" "/secrets/tls/tls.key") }}
{{- $common := dict "tls_params" (dict "tls_minimum_protocol_version" "TLSv1_2") "tls_certificates" (list $certificate) "alpn_protocols" (list .protocol) }}
{{- $context := dict "@type" "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext" "common_tls_context" $common }}
{{- if .tls.clientCa }}
{{- $_ := set $common "validation_context" (dict "trusted_ca" (dict "filename" "/secrets/tls/ca.crt")) }}
{{- $_ := set $context "require_client_certificate" true }}
{{- end }}
{{- printf "transport_socket: %s" (dict "name" "envoy.transport_sockets.tls" "typed_config" $context | toJson) }}
{{- else }}# nothing here{{ end }}
{{- end }}

{{/* All servers, by their one name; the dot at its end keeps the search domains of the cluster out. */}}
{{- define "bistream.envoyEndpoints" -}}
{{- $address := dict "socket_address" (dict "address" (printf "%s." (include "bistream.headlessHost" .root)) "port_value" (int .port)) }}
{{- list (dict "endpoint" (dict "address" $address "health_check_config" (dict "port_value" (int .root.Values.ports.health)))) | toJson }}
{{- end }}

{{- define "bistream.envoyHealthListener" -}}
# Readiness of the proxy itself (503 once it drains), and of its administration nothing but the metrics.
- name: health
  ignore_global_conn_limit: true
  bypass_overload_manager: true
  address: {socket_address: {address: 0.0.0.0, port_value: {{ int .Values.envoy.healthPort }}}}
  filter_chains:
    - filters:
        - name: envoy.filters.network.http_connection_manager
          typed_config:
            "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
            stat_prefix: health
            http_filters:
              - name: envoy.filters.http.health_check
                typed_config:
                  "@type": type.googleapis.com/envoy.extensions.filters.http.health_check.v3.HealthCheck
                  pass_through_mode: false
                  headers: [{name: ":path", string_match: {exact: /ready}}]
              - name: envoy.filters.http.router
                typed_config:
                  "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
            route_config:
              name: health
              virtual_hosts:
                - name: metrics
                  domains: ["*"]
                  routes:
                    - match: {path: /stats/prometheus}
                      route: {cluster: admin}
{{- end }}

{{- define "bistream.envoyAdminCluster" -}}
- name: admin
  type: STATIC
  connect_timeout: 1s
  load_assignment:
    cluster_name: admin
    endpoints:
      - lb_endpoints:
          - endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: 9901}}}
{{- end }}
