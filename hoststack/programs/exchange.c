// SPDX-License-Identifier: Apache-2.0
//
// A server that sends back what it receives, and a client that compares. For C libraries that no
// packaged program uses: compiled by each compiler that there is, run in all pairs.
//
// exchange server PORT: two processes, each with epoll.
// exchange client PORT: four threads, each with one connection after another and another way to
// wait and transfer; prints how many connections were on rings.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum { THREADS = 4, CONNECTIONS = 3, ROUNDS = 40, LARGEST = 200000 };

static void fail(const char *what)
{
	fprintf(stderr, "exchange: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void check(int result, const char *what)
{
	if (result < 0)
		fail(what);
}

static struct sockaddr_in address(int port)
{
	return (struct sockaddr_in){
		.sin_family = AF_INET,
		.sin_port = htons(port),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK),
	};
}

// What a connection has received and not sent yet.
struct echo {
	int fd;
	size_t length, sent;
	char octets[65536];
};

// Sends and receives until one of them would wait; 0 at the end of the connection.
static int echo(struct echo *e)
{
	for (;;) {
		while (e->sent < e->length) {
			ssize_t n = write(e->fd, e->octets + e->sent, e->length - e->sent);
			if (n < 0 && errno == EAGAIN)
				return 1;
			check(n, "write");
			e->sent += n;
		}
		ssize_t n = read(e->fd, e->octets, sizeof(e->octets));
		if (n <= 0 && !(n < 0 && errno == EAGAIN))
			return 0;
		if (n < 0)
			return 1;
		e->length = n;
		e->sent = 0;
	}
}

static void add(int epoll, int fd, uint32_t events, void *data)
{
	struct epoll_event event = {.events = events, .data.ptr = data};
	check(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event), "epoll_ctl");
}

static void take(int epoll, int listener)
{
	int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
	if (fd < 0)
		return;
	struct echo *e = calloc(1, sizeof(*e));
	e->fd = fd;
	add(epoll, fd, EPOLLIN | EPOLLOUT | EPOLLET, e);
}

static void serve(int port)
{
	struct sockaddr_in own = address(port);
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	check(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int)), "setsockopt");
	check(bind(listener, (struct sockaddr *)&own, sizeof(own)), "bind");
	check(listen(listener, 64), "listen");
	pid_t child = fork();
	check(child, "fork");
	if (!child)
		prctl(PR_SET_PDEATHSIG, SIGKILL);
	int epoll = epoll_create1(EPOLL_CLOEXEC);
	add(epoll, listener, EPOLLIN, NULL);
	for (;;) {
		struct epoll_event events[16];
		int n = epoll_wait(epoll, events, 16, -1);
		check(n, "epoll_wait");
		for (int i = 0; i < n; i++) {
			struct echo *e = events[i].data.ptr;
			if (!e) {
				take(epoll, listener);
			} else if (!echo(e)) {
				close(e->fd);
				free(e);
			}
		}
	}
}

static void wait_by(int way, int fd)
{
	if (way == 1) {
		struct pollfd one = {.fd = fd, .events = POLLIN};
		check(poll(&one, 1, 20000) - 1, "poll");
	} else if (way == 2) {
		fd_set set;
		FD_ZERO(&set);
		FD_SET(fd, &set);
		check(select(fd + 1, &set, NULL, NULL, &(struct timeval){.tv_sec = 20}) - 1,
		      "select");
	}
}

static ssize_t receive_by(int way, int fd, char *at, size_t length)
{
	if (way != 3)
		return read(fd, at, length);
	struct iovec parts[2] = {{at, length / 2}, {at + length / 2, length - length / 2}};
	struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
	return recvmsg(fd, &message, 0);
}

static void *converse(void *argument)
{
	struct {
		int port, way;
	} *self = argument;
	char *sent = malloc(LARGEST), *received = malloc(LARGEST);
	for (int connection = 0; connection < CONNECTIONS; connection++) {
		struct sockaddr_in server = address(self->port);
		int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		check(connect(fd, (struct sockaddr *)&server, sizeof(server)), "connect");
		for (int round = 0; round < ROUNDS; round++) {
			size_t length = round % 8 == 7 ? LARGEST : 1 + 37 * round;
			for (size_t i = 0; i < length; i++)
				sent[i] = i * 7 + round + self->way;
			// The server holds 64 KiB and sends them back meanwhile: a block at a time.
			for (size_t done = 0; done < length;) {
				size_t block = length - done < 32768 ? length - done : 32768;
				check(send(fd, sent + done, block, 0) == (ssize_t)block ? 0 : -1,
				      "send");
				for (size_t end = done + block; done < end;) {
					wait_by(self->way, fd);
					ssize_t n = receive_by(self->way, fd, received + done,
							       end - done);
					check(n > 0 ? 0 : -1, "receive");
					done += n;
				}
			}
			if (memcmp(sent, received, length))
				fail("other octets came back");
		}
		close(fd);
	}
	free(sent);
	free(received);
	return NULL;
}

static void run_client(int port)
{
	pthread_t threads[THREADS];
	struct {
		int port, way;
	} selves[THREADS];
	for (int i = 0; i < THREADS; i++) {
		selves[i].port = port;
		selves[i].way = i;
		pthread_create(&threads[i], NULL, converse, &selves[i]);
	}
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	uint64_t counters[4] = {0};
	void (*store)(uint64_t *) =
		(void (*)(uint64_t *))dlsym(RTLD_DEFAULT, "beeline_hoststack_counters");
	if (store)
		store(counters);
	printf("on rings: %d of %d, violations: %d\n", (int)counters[0], THREADS * CONNECTIONS,
	       (int)counters[3]);
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "server"))
		serve(atoi(argv[2]));
	else if (argc == 3 && !strcmp(argv[1], "client"))
		run_client(atoi(argv[2]));
	else
		return 2;
	return 0;
}
