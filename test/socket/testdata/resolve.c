/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the addresses of a name, a line for each, as the C library's own
 * resolver finds them. */
#include <arpa/inet.h>
#include <netdb.h>
#include <stdio.h>
#include <sys/socket.h>

int main(int argc, char **argv)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = 0;
	char text[NI_MAXHOST];
	int err;

	if (argc != 2)
		return 2;
	err = getaddrinfo(argv[1], 0, &hints, &list);
	if (err) {
		fprintf(stderr, "%s: %s\n", argv[1], gai_strerror(err));
		return 1;
	}
	for (; list; list = list->ai_next) {
		getnameinfo(list->ai_addr, list->ai_addrlen, text, sizeof(text), 0, 0,
			    NI_NUMERICHOST);
		puts(text);
	}
	return 0;
}
