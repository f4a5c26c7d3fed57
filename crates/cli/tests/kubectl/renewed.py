# One kept connection, whose token is replaced at the server first and at the client later.
# Arguments: the server, the file of its authority, the file of its tokens.
import os
import sys
import time

from kubernetes import client
from kubernetes.client.exceptions import ApiException

SERVER, AUTHORITY, TOKENS = sys.argv[1:]
DEADLINE = time.monotonic() + 100
token = "first"


def show(configuration):
    configuration.api_key["authorization"] = f"Bearer {token}"


def status():
    try:
        core.list_namespace()
    except ApiException as error:
        return error.status
    return 200


def port():
    """Returns the local port of the connection. The pool reopens a closed connection and counts it as the same."""
    pools = core.api_client.rest_client.pool_manager.pools
    (pool,) = [pools.get(key) for key in pools.keys()]
    (connection,) = [connection for connection in pool.pool.queue if connection]
    return connection.sock.getsockname()[1]


def until(expected):
    while (found := status()) != expected:
        assert time.monotonic() < DEADLINE, (expected, found)
        time.sleep(0.05)


configuration = client.Configuration()
configuration.host, configuration.ssl_ca_cert = SERVER, AUTHORITY
configuration.retries = False
configuration.refresh_api_key_hook = show
show(configuration)
core = client.CoreV1Api(client.ApiClient(configuration))
until(200)
kept = port()
with open(TOKENS + ".new", "w") as file:
    file.write("second,eve,1,system:masters\n")
os.replace(TOKENS + ".new", TOKENS)
until(401)
token = "second"
assert status() == 200
assert port() == kept
print("all is well")
