import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Properties;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericData;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;

/** Producer of Avro records: broker, registry, topic, and files of a schema and its rows of numbers in turn. */
class Produce {
    public static void main(String[] args) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[0]);
        settings.put("schema.registry.url", args[1]);
        settings.put("compression.type", "zstd");
        settings.put("linger.ms", "50");
        settings.put("key.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        settings.put("value.serializer", "io.confluent.kafka.serializers.KafkaAvroSerializer");
        try (KafkaProducer<String, Object> producer = new KafkaProducer<>(settings)) {
            for (int i = 3; i < args.length; i += 2) {
                send(producer, args[2], new Schema.Parser().parse(Path.of(args[i]).toFile()), Path.of(args[i + 1]));
            }
        }
    }

    private static void send(KafkaProducer<String, Object> producer, String topic, Schema schema, Path rows)
            throws Exception {
        List<Schema.Field> fields = schema.getFields();
        int sent = 0;
        for (String line : Files.readAllLines(rows)) {
            String[] numbers = line.split(" ");
            GenericData.Record record = new GenericData.Record(schema);
            for (int i = 0; i < numbers.length; i++) {
                record.put(fields.get(i).name(), Double.valueOf(numbers[i]));
            }
            producer.send(new ProducerRecord<>(topic, sent++ % 2, null, record));
        }
    }
}
