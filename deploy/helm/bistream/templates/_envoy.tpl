{{/* The configuration of Envoy: files/envoy.yaml is made by scripts/render_envoy.py from deploy/envoy/envoy.yaml. */}}
{{- define "bistream.envoyConfig" -}}
{{ tpl (.Files.Get "files/envoy.yaml") . }}
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
          - endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: {{ int .Values.envoy.adminPort }}}}}
{{- end }}
