// SPDX-License-Identifier: Apache-2.0

package selftest

import (
	"slices"
	"strconv"
	"strings"
)

// snmpForwarded reads the column ForwDatagrams of the lines that begin with "Ip:": names, then numbers.
func snmpForwarded(text string) (uint64, error) {
	column := -1
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		switch {
		case len(fields) == 0 || fields[0] != "Ip:":
		case column < 0:
			column = slices.Index(fields, "ForwDatagrams")
		case column < len(fields):
			return strconv.ParseUint(fields[column], 10, 64)
		}
	}
	return 0, errNoCounter
}

// snmp6Forwarded reads the line Ip6OutForwDatagrams: name and number.
func snmp6Forwarded(text string) (uint64, error) {
	for line := range strings.Lines(text) {
		if fields := strings.Fields(line); len(fields) == 2 && fields[0] == "Ip6OutForwDatagrams" {
			return strconv.ParseUint(fields[1], 10, 64)
		}
	}
	return 0, errNoCounter
}
