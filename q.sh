run(){ n=$1; shift; python /tmp/rev/regret3.py $n "$@" > /tmp/rev/r_$n.log 2>&1; }
run with_w8 "'nap':1.0,'sl':0.05" more
run bubw "'mb':1.0,'mr':0.29" more
run wide "" more
