# SPDX-License-Identifier: Apache-2.0
#
# Counts the results of the tests of a plan, the first file, in the output of go test -v, the
# second: of a test with parts, only these. False if one failed or did not run to its end.

FNR == NR { planned[$2]; next }

$1 == "===" && $2 ~ /^(RUN|CONT|NAME)$/ { current = $3 }
/^ +[a-z0-9_]+\.go:[0-9]+: / { said[current] = $0; sub(/^[^:]*:[0-9]+: /, "", said[current]) }
$1 == "---" && $2 ~ /^(PASS|FAIL|SKIP):$/ {
	tests[++n] = $3
	outcome[$3] = substr($2, 1, 4)
	parent = $3
	while (sub(/\/[^\/]*$/, "", parent))
		parts[parent]
}
$1 == "exit" && $2 != 0 { broken = 1 }
$1 == "ended" { ended = 1 }

END {
	for (i = 1; i <= n; i++) {
		if (tests[i] in parts)
			continue
		count[outcome[tests[i]]]++
		if (outcome[tests[i]] != "PASS")
			print outcome[tests[i]] " " tests[i] (outcome[tests[i]] == "SKIP" ? ": " said[tests[i]] : "")
	}
	for (test in planned) {
		if (test in outcome)
			continue
		print "NOT RUN " test
		missing++
	}
	if (!ended)
		print "the machine stopped before the tests did"
	printf "Linux %s: %d passed, %d skipped, %d failed, %d not run, in %d s\n", \
		version, count["PASS"], count["SKIP"], count["FAIL"], missing, seconds
	exit count["FAIL"] || missing || broken || !ended
}
