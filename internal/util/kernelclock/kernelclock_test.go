// SPDX-License-Identifier: Apache-2.0

package kernelclock

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"beeline.io/beeline/test/needs"
)

// printClock makes this program print its clock.
const printClock = "KERNELCLOCK_PRINT"

func TestMain(m *testing.M) {
	if os.Getenv(printClock) != "" {
		fmt.Println(Now(), Coarse())
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// A process in a time namespace whose clock is ahead or behind reads the clock of BPF programs.
func TestTimeNamespace(t *testing.T) {
	needs.Root(t)
	for _, ahead := range []string{"0", "86400", "-5"} {
		before := Coarse()
		cmd := exec.Command("unshare", "--time", "--monotonic", ahead, "/proc/self/exe")
		cmd.Args[len(cmd.Args)-1], _ = os.Executable()
		cmd.Env = append(os.Environ(), printClock+"=1")
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%v: %v", cmd.Args, err)
		}
		var now, coarse uint64
		if _, err := fmt.Sscan(string(out), &now, &coarse); err != nil {
			t.Fatal(err)
		}
		if after := Now(); now < before || now > after || coarse < before || coarse > now {
			t.Errorf("%s s ahead: the clock is %v, the coarse one %v, between %v and %v here", ahead,
				time.Duration(now), time.Duration(coarse), time.Duration(before), time.Duration(after))
		}
	}
}
