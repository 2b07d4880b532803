# The servers, the command line and the client, run by an unprivileged user.
#   docker build -t pocketmq .
#   docker run -p 127.0.0.1:9876:9876 -p 127.0.0.1:10911:10911 -v pocketmq:/var/lib/pocketmq pocketmq

ARG PYTHON=python:3.11.14-slim-bookworm

# The compiler is needed here alone.
FROM ${PYTHON} AS build
RUN apt-get update \
 && apt-get install -y --no-install-recommends gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY requirements-image.lock ./
RUN python -m venv /opt/pocketmq \
 && /opt/pocketmq/bin/pip install --no-cache-dir --require-hashes --no-deps -r requirements-image.lock
COPY pyproject.toml setup.py README.md LICENSE ./
COPY remoting remoting
COPY nameserver nameserver
COPY broker broker
COPY client client
COPY spark_connector spark_connector
COPY pyspark_rocketmq.py pyspark_rocketmq_store.py ./
COPY pocketmq pocketmq
RUN POCKETMQ_REQUIRE_CORE=1 /opt/pocketmq/bin/pip install --no-cache-dir --no-deps .

# The same with Spark and Java, for the services of the profile "spark" in docker-compose.yml.
FROM build AS spark-build
COPY requirements-spark.lock ./
RUN /opt/pocketmq/bin/pip install --no-cache-dir --require-hashes --no-deps -r requirements-spark.lock

FROM ${PYTHON} AS spark
RUN apt-get update \
 && apt-get install -y --no-install-recommends default-jre-headless procps \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --system --uid 10001 --create-home --home-dir /var/lib/pocketmq pocketmq
COPY --from=spark-build /opt/pocketmq /opt/pocketmq
COPY examples /opt/pocketmq/examples
ENV PATH=/opt/pocketmq/bin:$PATH PYTHONUNBUFFERED=1 PYSPARK_PYTHON=/opt/pocketmq/bin/python
USER pocketmq
WORKDIR /var/lib/pocketmq
ENTRYPOINT []

# RocketMQ's controller, for the profile "ha".
FROM ${PYTHON} AS controller-build
RUN apt-get update \
 && apt-get install -y --no-install-recommends maven default-jdk-headless \
 && rm -rf /var/lib/apt/lists/*
COPY deploy/controller/pom.xml /src/
RUN mvn --batch-mode --quiet -f /src/pom.xml -DoutputDirectory=/opt/rocketmq/lib dependency:copy-dependencies

FROM ${PYTHON} AS controller
RUN apt-get update \
 && apt-get install -y --no-install-recommends default-jre-headless \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --system --uid 10001 --create-home --home-dir /var/lib/pocketmq pocketmq
COPY --from=controller-build /opt/rocketmq/lib /opt/rocketmq/lib
COPY deploy/controller/run.sh /opt/rocketmq/
USER pocketmq
WORKDIR /var/lib/pocketmq
ENTRYPOINT []

FROM ${PYTHON}
RUN useradd --system --uid 10001 --create-home --home-dir /var/lib/pocketmq pocketmq
COPY --from=build /opt/pocketmq /opt/pocketmq
COPY examples /opt/pocketmq/examples
ENV PATH=/opt/pocketmq/bin:$PATH PYTHONUNBUFFERED=1
USER pocketmq
WORKDIR /var/lib/pocketmq
VOLUME /var/lib/pocketmq
EXPOSE 9876 10909 10911
# Of the command below; with another one say --health-cmd or --no-healthcheck.
HEALTHCHECK --interval=5s --timeout=5s --start-period=120s --retries=3 \
  CMD ["pocketmq", "health", "--nameserver", "127.0.0.1:9876", "--broker", "127.0.0.1:10911"]
ENTRYPOINT ["pocketmq"]
CMD ["standalone", "--store", "/var/lib/pocketmq/store", "--host", "0.0.0.0", "--set", "brokerIP1=127.0.0.1"]
