{{/* A door of the proxy: dict "root" $ "name" "grpc" "alpn" "h2" */}}
{{- define "bistream.envoyListener" -}}
{{- $values := .root.Values -}}
- name: {{ .name }}
  address: {socket_address: {address: 0.0.0.0, port_value: {{ int (get $values.ports .name) }}}}
  filter_chains:
    - filters:
        - name: envoy.filters.network.http_connection_manager
          typed_config:
            "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
            stat_prefix: {{ .name }}
            generate_request_id: false
            stream_idle_timeout: 0s  # the gate ends streams that are of no use
            {{- if eq .name "grpc" }}
            codec_type: HTTP2
            http2_protocol_options:
              max_concurrent_streams: 1024
              initial_stream_window_size: 1048576
              initial_connection_window_size: 16777216
              connection_keepalive: {interval: 10s, timeout: 10s}  # notices a client that vanished
            {{- end }}
            local_reply_config:  # what Envoy refuses itself, in the words of the servers: CODE: sentence
              mappers:
                - filter: {response_flag_filter: {flags: [UH, UO]}}
                  body: {inline_string: "ENGINE_ERROR: No server takes sessions at the moment; try again in a few seconds."}
                - filter: {response_flag_filter: {flags: [UF, UC, UR, LR, URX]}}
                  body: {inline_string: "ENGINE_ERROR: The server was lost; start the session again, another server takes it."}
              {{- if eq .name "http" }}
              body_format: {json_format: {error: "%LOCAL_REPLY_BODY%"}}
              {{- end }}
            http_filters:
              - name: envoy.filters.http.router
                typed_config:
                  "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
                  suppress_envoy_headers: true
            route_config:
              name: {{ .name }}
              virtual_hosts:
                - name: servers
                  domains: ["*"]
                  routes:
                    {{- if eq .name "http" }}
                    - match: {path: /metrics}  # of one server, and never of the same one
                      direct_response: {status: 404, body: {inline_string: "NOT_SERVED: Ask each server for its metrics, at its health port."}}
                    {{- end }}
                    - match: {prefix: /}
                      route:
                        cluster: {{ .name }}
                        timeout: 0s  # the default of 15 s would end sessions
                        retry_policy:  # only what no server has begun
                          retry_on: connect-failure,refused-stream,reset-before-request
                          num_retries: 3
                          retry_host_predicate:
                            - name: envoy.retry_host_predicates.previous_hosts
                              typed_config:
                                "@type": type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate
                          host_selection_retry_max_attempts: 5
      {{- if $values.tls.existingSecret }}
      transport_socket:
        name: envoy.transport_sockets.tls
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext
          {{- if $values.tls.clientCa }}
          require_client_certificate: true
          {{- end }}
          common_tls_context:
            alpn_protocols: [{{ .alpn }}]
            tls_params: {tls_minimum_protocol_version: TLSv1_2}
            tls_certificates:
              - certificate_chain: {filename: /secrets/tls/tls.crt}
                private_key: {filename: /secrets/tls/tls.key}
            {{- if $values.tls.clientCa }}
            validation_context: {trusted_ca: {filename: /secrets/tls/ca.crt}}
            {{- end }}
      {{- end }}
{{- end }}

{{/* The servers, by one of their ports: dict "root" $ "name" "grpc" */}}
{{- define "bistream.envoyCluster" -}}
{{- $values := .root.Values -}}
- name: {{ .name }}
  type: STRICT_DNS
  dns_refresh_rate: {{ int $values.envoy.dnsRefreshSeconds }}s
  dns_lookup_family: V4_PREFERRED  # the servers listen on IPv4
  dns_failure_refresh_rate: {base_interval: 1s, max_interval: 5s}
  connect_timeout: 1s
  {{- if eq .name "grpc" }}
  preconnect_policy: {per_upstream_preconnect_ratio: 1.5}  # a session counts once it has a connection: many at once would be drawn at random
  {{- end }}
  load_balancing_policy:
    policies:
      - typed_extension_config:
          name: envoy.load_balancing_policies.least_request
          typed_config:
            "@type": type.googleapis.com/envoy.extensions.load_balancing_policies.least_request.v3.LeastRequest
            selection_method: FULL_SCAN  # the default compares two servers drawn at random
  # A server whose pod is being deleted leaves the DNS while it still accepts: it gets no new session from then on, and its streams go on.
  ignore_health_on_host_removal: true
  # Never a server that is not ready, however few are.
  common_lb_config:
    healthy_panic_threshold: {value: 0}
    update_merge_window: 0s  # the default keeps what the health checks have found for up to a second
  # The defaults are 1024 sessions in all; the servers have limits of their own.
  circuit_breakers:
    thresholds: [{max_connections: 1000000, max_pending_requests: 1000000, max_requests: 1000000, max_retries: 1000}]
  health_checks:
    - http_health_check: {path: /v2/health/ready}  # of the keeper: not ready from the first moment of a drain
      timeout: 1s
      interval: {{ .root.Values.envoy.healthCheckSeconds }}s
      no_traffic_interval: {{ .root.Values.envoy.healthCheckSeconds }}s  # the default asks once a minute before the first session
      unhealthy_threshold: 2  # questions without an answer; the answer "not ready" counts at once
      healthy_threshold: 1
  typed_extension_protocol_options:
    envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
      "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
      common_http_protocol_options: {idle_timeout: {{ ternary "50s" "4s" (eq .name "grpc") }}}  # before the gate closes it
      explicit_http_config:
        {{- if eq .name "grpc" }}
        http2_protocol_options:
          # A session has its connection to the gate for itself: on a shared one, a client that does not read would hold up the others.
          max_concurrent_streams: 1
          initial_stream_window_size: 1048576
          initial_connection_window_size: 1048576
          connection_keepalive: {interval: 10s, timeout: 10s}
        {{- else }}
        http_protocol_options: {}
        {{- end }}
  load_assignment:
    cluster_name: {{ .name }}
    endpoints:
      - lb_endpoints:
          - endpoint:
              address:
                socket_address:
                  address: {{ include "bistream.headlessHost" .root }}.
                  port_value: {{ int (get $values.ports .name) }}
              health_check_config: {port_value: {{ int $values.ports.health }}}
{{- end }}

{{- define "bistream.envoyConfig" -}}
admin: {address: {socket_address: {address: 127.0.0.1, port_value: {{ int .Values.envoy.adminPort }}}}}  # whoever reaches it can end Envoy
overload_manager:
  resource_monitors:
    - name: envoy.resource_monitors.global_downstream_max_connections
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig
        max_active_downstream_connections: 20000
static_resources:
  listeners:
    {{- include "bistream.envoyListener" (dict "root" $ "name" "grpc" "alpn" "h2") | nindent 4 }}
    {{- include "bistream.envoyListener" (dict "root" $ "name" "http" "alpn" "http/1.1") | nindent 4 }}
    # Readiness of the proxy itself (503 once it drains), and of its administration nothing but the metrics.
    - name: health
      ignore_global_conn_limit: true
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
  clusters:
    {{- include "bistream.envoyCluster" (dict "root" $ "name" "grpc") | nindent 4 }}
    {{- include "bistream.envoyCluster" (dict "root" $ "name" "http") | nindent 4 }}
    - name: admin
      type: STATIC
      connect_timeout: 1s
      load_assignment:
        cluster_name: admin
        endpoints:
          - lb_endpoints:
              - endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: {{ int .Values.envoy.adminPort }}}}}
{{- end }}
