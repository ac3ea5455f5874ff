# SPDX-License-Identifier: Apache-2.0
"""Servers under load by clients, some of them Debian's own. Each client checks what it gets, so that a test has passed if no
octet was wrong.

The clients that are written here run in programs of their own, with the library as the servers have it:

    servers.py CLIENT ARGUMENT...
"""

import concurrent.futures
import contextlib
import ftplib
import hashlib
import http.client
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time

HOST = "127.0.0.1"


class Server:
    """A program that runs until the test is over, and listens at a port."""

    def __init__(self, way, name, port, *command, user=None):
        self.way, self.port = way, port
        self.output = open(way.folder / f"{name}.log", "wb")
        prefix = ["runuser", "-u", user, "--"] if user else []
        self.process = subprocess.Popen([*prefix, *command], cwd=way.folder, env=way.environment, stdin=subprocess.DEVNULL,
                                        stdout=self.output, stderr=subprocess.STDOUT, start_new_session=True)

    def __enter__(self):
        for _ in range(600):
            with contextlib.suppress(OSError), socket.create_connection((HOST, self.port), 1):
                return self
            time.sleep(0.1)
        raise TimeoutError(f"nothing listens at port {self.port}")

    def __exit__(self, *_):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.output.close()


def of(is_right):
    return "passed" if is_right else "failed"


def file(path, text):
    path.write_text(textwrap.dedent(text))
    return path


def open_to(way, name, user):
    """A folder of a user below the suite's, which others may enter."""
    for parent in (way.folder, way.folder.parent):
        parent.chmod(0o755)
    folder = way.folder / name
    folder.mkdir(exist_ok=True)
    shutil.chown(folder, user)
    return folder


def together(count, one):
    """Runs one(0), one(1) ... at the same time, and returns how many were right."""
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        return sum(pool.map(one, range(count)))


def sql(way, test, *command, text=""):
    """Returns what a client of a database has written, without spaces around it."""
    status, output = way.run(test, "sh", "-c", 'printf %s "$1" | { shift; "$@"; }', "-", text, *command)
    return output.strip() if status == 0 else f"failed: {output}"


def postgresql(way, _):
    folder = open_to(way, "postgresql", "postgres")
    programs = max(pathlib.Path("/usr/lib/postgresql").iterdir()) / "bin"
    way.run("initdb", "runuser", "-u", "postgres", "--", programs / "initdb", "-D", folder / "data", "-A", "trust", "--no-sync")
    options = ["-c", "fsync=off", "-c", f"unix_socket_directories={folder}", "-c", f"listen_addresses={HOST}"]
    connect = ["-h", HOST, "-U", "postgres"]
    with Server(way, "postgres", 5432, programs / "postgres", "-D", folder / "data", *options, user="postgres"):
        yield "pgbench -i", of(way.run("pgbench-i", "pgbench", *connect, "-i", "-s", "2", "postgres")[0] == 0)
        for name, flags, total in (("simple", ["-M", "simple", "-t", "300"], 2400), ("prepared", ["-M", "prepared", "-t", "300"], 2400),
                                   ("connections", ["-C", "-t", "25"], 200), ("select", ["-S", "-t", "2000"], 16000)):
            status, output = way.run(f"pgbench-{name}", "pgbench", *connect, "-n", "-c", "8", "-j", "2", *flags, "postgres")
            yield f"pgbench {name}", of(status == 0 and f"actually processed: {total}/{total}" in output)
        query = """SELECT (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT sum(delta) FROM pgbench_history),
            (SELECT sum(bbalance) FROM pgbench_branches) = (SELECT sum(delta) FROM pgbench_history), (SELECT count(*) FROM pgbench_history)"""
        yield "balances", of(sql(way, "balances", "psql", *connect, "-At", "postgres", text=query) == "t|t|5000")
        large = "SELECT md5(string_agg(repeat(md5(i::text), 1000), '' ORDER BY i)) FROM generate_series(1, 500) i"
        rows = "COPY (SELECT repeat(md5(i::text), 1000) FROM generate_series(1, 500) i) TO STDOUT"
        status, output = way.run("copy", "psql", *connect, "-At", "-c", rows, "postgres")
        got = hashlib.md5(output.replace("\n", "").encode()).hexdigest()
        yield "16 MB by COPY", of(status == 0 and got == sql(way, "large", "psql", *connect, "-At", "postgres", text=large))


def mariadb(way, _):
    folder = open_to(way, "mariadb", "mysql")
    way.run("install-db", "mariadb-install-db", "--no-defaults", f"--datadir={folder}/data", "--user=mysql",
            "--auth-root-authentication-method=normal", "--skip-test-db")
    options = ["--no-defaults", f"--datadir={folder}/data", f"--socket={folder}/socket", "--user=mysql", f"--bind-address={HOST}",
               "--innodb-flush-log-at-trx-commit=0", f"--pid-file={folder}/pid"]
    connect = ["mariadb", "--no-defaults", "--protocol=tcp", "-h", HOST, "-u", "root", "-N", "-B"]
    with Server(way, "mariadbd", 3306, "mariadbd", *options):
        setup = "CREATE DATABASE d; CREATE TABLE d.t (client INT, n INT, text LONGTEXT, PRIMARY KEY (client, n))"
        yield "setup", of(sql(way, "setup", *connect, text=setup) == "")

        def one(i):
            rows = "".join(f"INSERT INTO d.t VALUES ({i}, {n}, REPEAT(MD5({n}), {n})); SELECT COUNT(*) FROM d.t WHERE client = {i};\n"
                           for n in range(1, 201))
            return sql(way, f"client-{i}", *connect, text=rows) == "\n".join(map(str, range(1, 201)))

        yield "8 clients, 200 rows each", of(together(8, one) == 8)
        query = "SELECT MD5(GROUP_CONCAT(MD5(text) ORDER BY client, n)), SUM(LENGTH(text)) FROM d.t"
        before = sql(way, "before", *connect, text="SET SESSION group_concat_max_len = 1000000; " + query)
        status, dump = way.run("dump", "mariadb-dump", *connect[1:-2], "--databases", "d")
        yield "dump of 5 MB", of(status == 0 and len(dump) > 5_000_000)
        with open(way.folder / "dump.log", "rb") as text:
            loaded = subprocess.run(connect, env=way.environment, stdin=text, timeout=300).returncode
        after = sql(way, "after", *connect, text="SET SESSION group_concat_max_len = 1000000; " + query)
        yield "the dump loaded again", of(loaded == 0 and before == after and before.endswith(str(32 * 8 * 20100)))


def client(way, test, *arguments):
    """Runs one of CLIENTS, and returns how often it was right."""
    status, output = way.run(test, sys.executable, __file__, *map(str, arguments))
    return int(output) if status == 0 else -1


def get(port, paths, right):
    """Gets paths on one connection, and returns how many answers were right."""
    connection = http.client.HTTPConnection(HOST, int(port), timeout=60)
    count = 0
    for path in paths:
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            count += answer.status == 200 and right(path, answer.read())
        except (OSError, http.client.HTTPException):
            connection.close()
    connection.close()
    return count


def get_sizes(kind):
    """10,000 requests of eight clients for as many octets as the path says."""
    def right(path, body):
        n = int(path.split("=")[1])
        return body == (hashlib.md5(str(n).encode()).hexdigest() * (n // 32 + 1))[:n].encode()

    paths = [f"/{kind}?n={(i * 7919) % 40000 if i % 10 == 0 else i % 3000}" for i in range(1250)]
    return together(8, lambda _: get(8080, paths, right))


def get_files(port):
    """Requests of six clients for files of which the path says the length."""
    expected = {f"/{n}": pattern(n) for n in LENGTHS}
    paths = (["/1", "/100", "/5000"] * 6 + ["/70000"]) * 10 + ["/1000000"] * 3
    return together(6, lambda _: get(port, paths, lambda path, body: body == expected[path])) == 6 * len(paths)


def log_in_to_ftp(count):
    def session(_):
        try:
            with ftplib.FTP(HOST, timeout=60) as ftp:
                ftp.login()
                got = []
                ftp.retrbinary("RETR file", got.append)
                return ftp.nlst() == ["file"] and b"".join(got) == pattern(1_000_000)
        except (OSError, EOFError, ftplib.Error):
            return False

    return together(int(count), session)


def log_in_to_imap(count):
    """Sends all commands of each session at once."""
    def session(i):
        commands = [f"a LOGIN u{i} secret", "b SELECT INBOX", "c NOOP", "d LOGOUT"]
        with contextlib.suppress(OSError), socket.create_connection((HOST, 143), 30) as connection:
            connection.sendall("".join(f"{line}\r\n" for line in commands).encode())
            answer = b""
            while part := connection.recv(65536):
                answer += part
            return all(f"\r\n{tag} OK".encode() in answer for tag in "abcd")
        return False

    return sum(together(int(count), session) for _ in range(60 // int(count)))


CLIENTS = {"sizes": get_sizes, "files": get_files, "ftp": log_in_to_ftp, "imap": log_in_to_imap}

# The lengths of files.
LENGTHS = 1, 100, 5000, 70_000, 1_000_000


def pattern(n):
    return bytes(i * i % 251 for i in range(n))


def nginx_php(way, _):
    """nginx with PHP-FPM by TCP, with and without connections that are kept."""
    folder = open_to(way, "web", "www-data")
    file(folder / "size.php", "<?php echo substr(str_repeat(md5($_GET['n']), 1 + $_GET['n'] / 32), 0, $_GET['n']);")
    fpm = file(folder / "fpm.conf", f"""
        [global]
        daemonize = no
        error_log = {folder}/fpm.log
        [www]
        user = www-data
        listen = {HOST}:9000
        pm = static
        pm.max_children = 16
    """)
    common = f"include /etc/nginx/fastcgi_params; fastcgi_param SCRIPT_FILENAME {folder}/size.php; fastcgi_pass"
    conf = file(folder / "nginx.conf", f"""
        daemon off;
        worker_processes 2;
        pid {folder}/pid;
        error_log {folder}/error.log;
        events {{ }}
        http {{
            access_log off;
            upstream kept {{ server {HOST}:9000; keepalive 2; }}
            server {{
                listen {HOST}:8080;
                keepalive_requests 100000;
                location /one {{ {common} {HOST}:9000; }}
                location /kept {{ fastcgi_keep_conn on; {common} kept; }}
            }}
        }}
    """)

    with Server(way, "php-fpm", 9000, "php-fpm8.2", "-y", fpm), Server(way, "nginx", 8080, "nginx", "-c", conf, "-p", folder):
        for kind in "one", "kept":
            yield f"10,000 requests, {kind}", of(client(way, kind, "sizes", kind) == 10_000)


def lighttpd(way, _):
    folder = open_to(way, "lighttpd", "www-data")
    for n in LENGTHS:
        (folder / str(n)).write_bytes(pattern(n))
    conf = file(folder / "conf", f"""
        server.document-root = "{folder}"
        server.bind = "{HOST}"
        server.port = 8081
        server.modules = ("mod_proxy")
        server.max-keep-alive-requests = 100000
        $SERVER["socket"] == "{HOST}:8082" {{ proxy.server = ("" => (("host" => "{HOST}", "port" => 8081))) }}
    """)
    with Server(way, "lighttpd", 8081, "lighttpd", "-D", "-f", conf):
        for name, port in ("files", 8081), ("proxy", 8082):
            yield name, of(client(way, name, "files", port) == 1)


def vsftpd(way, _):
    folder = open_to(way, "ftp", "root")
    folder.chmod(0o555)
    (folder / "file").write_bytes(pattern(1_000_000))
    conf = file(way.folder / "vsftpd.conf", f"""
        listen=YES
        listen_address={HOST}
        background=NO
        anonymous_enable=YES
        no_anon_password=YES
        anon_root={folder}
        pasv_min_port=40000
        pasv_max_port=41000
        secure_chroot_dir={open_to(way, "empty", "root")}
    """.replace("        ", ""))

    with Server(way, "vsftpd", 21, "vsftpd", conf):
        for count in 1, 5:
            yield f"{count} logins", of(client(way, f"logins-{count}", "ftp", count) == count)


def dovecot(way, _):
    """Clients that send all commands at once: dovecot passes the connection to another process at LOGIN."""
    folder = open_to(way, "dovecot", "root")
    mail = open_to(way, "mail", "nobody")
    conf = file(folder / "conf", f"""
        base_dir = {folder}/run
        state_dir = {folder}/state
        log_path = {folder}/log
        protocols = imap
        listen = {HOST}
        ssl = no
        disable_plaintext_auth = no
        mail_location = maildir:{mail}/%u
        mail_max_userip_connections = 100
        first_valid_uid = 1
        passdb {{
          driver = static
          args = password=secret
        }}
        userdb {{
          driver = static
          args = uid=nobody gid=nogroup home={mail}
        }}
    """)

    with Server(way, "dovecot", 143, "dovecot", "-F", "-c", conf):
        for count in 1, 6:
            yield f"pipelined logins, {count} at a time", of(client(way, f"logins-{count}", "imap", count) == 60)


SUITES = {"postgresql": postgresql, "mariadb": mariadb, "nginx-php": nginx_php, "lighttpd": lighttpd, "vsftpd": vsftpd, "dovecot": dovecot}

# Servers that fork for each connection, or pass it to another process: it may stay on the kernel.
FORKING = {"vsftpd", "dovecot"}

if __name__ == "__main__":
    print(int(CLIENTS[sys.argv[1]](*sys.argv[2:])))
