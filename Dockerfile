# The service, the worker and the command line in one image; what runs is up to the command.
FROM python:3.12-slim AS build
WORKDIR /src
COPY requirements/run.txt requirements/run.txt
RUN python -m venv /interlock \
    && /interlock/bin/pip install --no-cache-dir --require-hashes -r requirements/run.txt
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN /interlock/bin/pip install --no-cache-dir --no-deps .

FROM python:3.12-slim
RUN useradd --uid 10001 --home-dir /data --create-home --shell /usr/sbin/nologin interlock
COPY --from=build /interlock /interlock
ENV PATH=/interlock/bin:$PATH PYTHONUNBUFFERED=1
USER interlock
WORKDIR /data
EXPOSE 8420
ENTRYPOINT ["interlock"]
CMD ["serve"]
