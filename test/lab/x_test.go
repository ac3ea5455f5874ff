package lab
import ("testing";"context";"time";"sync")
func TestX(t *testing.T) {
	for range 2 {
	l := New(t)
	ctx, c := context.WithTimeout(context.Background(), 25*time.Second)
	defer c()
	l.Host("b1").StartServer(ServerOptions{})
	var wg sync.WaitGroup
	for _, h := range []string{"a1","node-a"} {
	d := l.Host(h).Command(ctx, "timeout", "2", "tcpdump", "-ni", "any", "-l", "ip6 and not ip6 proto 0")
	wg.Go(func(){ o,_:=d.CombinedOutput(); t.Log(h, string(o)) })
	}
	time.Sleep(500*time.Millisecond)
	t0 := time.Now()
	_, err := l.Host("a1").Request(ctx, "tcp", "[fd00:10:2::11]:8080", "x")
	t.Log(err, time.Since(t0)); t0 = time.Now()
	wg.Wait()
	l.Down()
	}
}
