# An example of an engine: vLLM's own image with the connector. Its sidecar runs in a container of its own, so it needs no Node.js:
#   docker build -f deploy/docker/engine.Dockerfile -t tierkv/engine .
ARG VLLM_IMAGE=vllm/vllm-openai:v0.32.0

FROM ${VLLM_IMAGE}
ARG TARGETARCH=amd64
COPY release/*.whl /wheels/
RUN case "$TARGETARCH" in \
      amd64) cpu=x86_64 ;; \
      arm64) cpu=aarch64 ;; \
      *) echo "no wheel for $TARGETARCH" >&2; exit 1 ;; \
    esac \
    && python3 -m pip install --no-cache-dir --no-deps --no-index /wheels/tierkv-*-manylinux_2_28_"$cpu".whl \
    && rm -r /wheels \
    && install -d -o 10001 -g 10001 -m 700 /home/tierkv /run/tierkv
COPY deploy/docker/sidecar.toml /etc/tierkv/tierkv.toml
# The sidecar's user: the two look at each other's before they share memory.
ENV HOME=/home/tierkv \
    TIERKV_CONFIG=/etc/tierkv/tierkv.toml
USER 10001:10001
WORKDIR /home/tierkv
VOLUME ["/run/tierkv", "/home/tierkv"]
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=600s --retries=3 \
  CMD ["python3", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=2)"]
ENTRYPOINT ["vllm", "serve", "--enable-prefix-caching", "--kv-transfer-config", "{\"kv_connector\": \"TierKVConnector\", \"kv_connector_module_path\": \"tierkv.connectors.vllm.connector\", \"kv_role\": \"kv_both\"}"]
CMD ["Qwen/Qwen3-0.6B"]
