// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bufio"
	"errors"
	"strconv"
	"testing"
)

// If Up is killed after any step, the next Up creates the lab again, and Down removes it.
func TestUpKilledAfterEachStep(t *testing.T) {
	name := newName(t)
	steps := 0
	for ; ; steps++ {
		err := part(t, partUp, name, strconv.Itoa(steps+1)).Run()
		if err == nil {
			break // it ended before that step
		}
		if left := leftovers(t, name); left == nil {
			t.Fatalf("step %d: nothing exists after the kill (%v): the test proves nothing", steps+1, err)
		}
		if _, err := Open(name); !errors.Is(err, ErrIncomplete) {
			t.Errorf("step %d: Open: %v, want ErrIncomplete", steps+1, err)
		}
		if steps%2 == 0 { // take down every other one, create the rest again
			if err := Down(name); err != nil {
				t.Fatalf("step %d: %v", steps+1, err)
			}
			wantNothingLeft(t, name)
			continue
		}
		l, err := Up(Config{Name: name, Temporary: true})
		if err != nil || l.Reused {
			t.Fatalf("step %d: Up: %v, want a new lab", steps+1, err)
		}
		if err := l.Down(); err != nil {
			t.Fatal(err)
		}
		wantNothingLeft(t, name)
	}
	if steps < 20 {
		t.Errorf("only %d steps", steps)
	}
	if err := Down(name); err != nil {
		t.Fatal(err)
	}
	wantNothingLeft(t, name)
}

// A temporary lab survives the kill of its owner, but its processes do not, and the next temporary lab removes
// it.
func TestSweepRemovesLabsOfTheDead(t *testing.T) {
	name, lasting := newName(t), newName(t)
	owner := part(t, partOwner, name)
	out, err := owner.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := owner.StdinPipe(); err != nil { // it waits until this is closed
		t.Fatal(err)
	}
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("the owner did not become ready: %q (%v)", line, err)
	}
	// A lab that is not temporary survives everybody.
	if err := part(t, partUp, lasting, "0").Run(); err != nil {
		t.Fatal(err)
	}
	if err := Sweep(); err != nil {
		t.Fatal(err)
	}
	l, err := Open(name)
	if err != nil {
		t.Fatalf("Sweep removed a running owner's lab: %v", err)
	}
	// Other tests of this machine sweep, too: they must wait until it has been checked.
	lock, err := lockLab(name, false, true)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := owner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	owner.Wait()
	eventually(t, "the processes of the killed owner end", func() bool {
		pids, err := cgroupPIDs(l.CgroupRoot)
		if err != nil {
			t.Fatal(err)
		}
		return len(pids) == 0
	})
	if _, err := Open(name); err != nil {
		t.Errorf("the lab ended with its owner (%v): the test proves nothing", err)
	}
	lock.Close()
	New(t)
	eventually(t, "nothing of the lab is left", func() bool { return leftovers(t, name) == nil }) // any process may sweep
	if _, err := Open(lasting); err != nil {
		t.Errorf("Sweep removed a lab that is not temporary: %v", err)
	}
}
