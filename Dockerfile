# The image that `penstock deploy` starts: docker build --build-arg DEVICE=cuda -t REGISTRY/penstock:TAG .
# --build-arg EXTRAS=ray,monitors,… says which extras it has, all of them; PACKAGES=vllm adds what is no extra. Tell `deploy` both: --extras.
# DEVICE=cuda has torch with CUDA, as its own package index ships it, DEVICE=cpu the small one. No secrets: pods get them from a Secret.
ARG PYTHON=3.12

FROM python:${PYTHON}-slim-bookworm AS build
ARG DEVICE=cuda
ARG EXTRAS=math,gym,hub,lora,ray,serve,monitors,s3,feedback
ARG PACKAGES=
WORKDIR /build
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
# Versions are those of constraints.txt. ray[default] has the dashboard through which KubeRay submits a run.
RUN python -m venv /opt/penstock \
 && if [ "$DEVICE" = cpu ]; then \
      /opt/penstock/bin/pip install --no-cache-dir --index-url https://download.pytorch.org/whl/cpu "$(grep ^torch== constraints.txt)"; \
    fi \
 && /opt/penstock/bin/pip install --no-cache-dir --constraint constraints.txt \
      ".[$EXTRAS]" "ray[default]" $PACKAGES

FROM python:${PYTHON}-slim-bookworm
# KubeRay asks with wget whether a Ray node is healthy.
RUN apt-get update && apt-get install -y --no-install-recommends wget=1.21.* && rm -rf /var/lib/apt/lists/*
RUN groupadd --gid 1000 penstock && useradd --uid 1000 --gid 1000 --create-home penstock && install -d -o 1000 -g 1000 /penstock
COPY --from=build /opt/penstock /opt/penstock
ENV PATH=/opt/penstock/bin:$PATH PYTHONUNBUFFERED=1
USER 1000:1000
WORKDIR /penstock
CMD ["penstock", "--help"]
